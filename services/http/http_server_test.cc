#include "services/http/http_server.h"

#include <httplib.h>

#include <atomic>
#include <filesystem>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/files/files.h"
#include "services/metrics/registry.h"
#include "services/security/certificates.h"

namespace capstan::services {
namespace {

using ::testing::HasSubstr;

TEST(HttpRequestTest, WhatACallerSendsToSayWhoItIs) {
  HttpRequest request;
  EXPECT_EQ(CookieOf(request, "token"), "");
  EXPECT_EQ(BearerTokenOf(request), "");
  request.headers["authorization"] = "bearer x";
  EXPECT_EQ(BearerTokenOf(request), "");
  request.headers["authorization"] = "Bearer a b";
  EXPECT_EQ(BearerTokenOf(request), "a b");
  for (const auto& [header, value] :
       std::map<std::string, std::string>{{"token=a", "a"},
                                          {"x=1;token=a=b ; token=c", "a=b"},
                                          {"tokens=a; token=b", "b"},
                                          {"xtoken=a", ""},
                                          {"token", ""},
                                          {";;= ;token=", ""}}) {
    request.headers["cookie"] = header;
    EXPECT_EQ(CookieOf(request, "token"), value) << header;
  }
}

TEST(HttpServerTest, ServesMetricsHealthReadinessAndOwnRoutes) {
  MetricsRegistry metrics("coordinator");
  std::atomic<bool> ready{false};
  HttpOptions options;
  options.metrics = [&metrics] { return metrics.Scrape(); };
  options.ready = [&ready] { return ready.load(); };
  options.routes["/sd"] = [](const HttpRequest& request) {
    const auto it = request.parameters.find("component");
    return HttpResponse{.body = it == request.parameters.end() ? "none" : it->second,
                        .content_type = "application/json"};
  };
  options.posts["/form"] = [](const HttpRequest& request) {
    return HttpResponse{.code = 303,
                        .body = absl::StrCat(request.parameters.find("token")->second, "/",
                                             request.headers.at("cookie"), "/", request.tls),
                        .headers = {{"Set-Cookie", "a=b; HttpOnly"}}};
  };
  options.routes["/throws"] = [](const HttpRequest&) -> HttpResponse {
    throw std::runtime_error("bug");
  };
  auto server = HttpServer::Start(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_GT((*server)->endpoint().port, 0);
  httplib::Client client("127.0.0.1", (*server)->endpoint().port);

  auto result = client.Get("/metrics");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 200);
  EXPECT_THAT(result->body, HasSubstr("capstan_build_info{component=\"coordinator\""));
  EXPECT_THAT(result->get_header_value("Content-Type"), HasSubstr("version=0.0.4"));
  EXPECT_EQ(client.Get("/healthz")->status, 200);
  EXPECT_EQ(client.Get("/readyz")->status, 503);
  ready = true;
  EXPECT_EQ(client.Get("/readyz")->body, "ok\n");
  EXPECT_EQ(client.Get("/sd?component=gpu%20worker")->body, "gpu worker");
  EXPECT_EQ(client.Get("/throws")->status, 500);
  EXPECT_EQ(client.Get("/no/such")->status, 404);
  EXPECT_EQ(client.Post("/healthz")->status, 404);
  EXPECT_EQ(client.Get("/form")->status, 404);
  result =
      client.Post("/form", {{"Cookie", "x=y"}}, "token=a%2Bb", "application/x-www-form-urlencoded");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 303);
  EXPECT_EQ(result->body, "a+b/x=y/0");
  EXPECT_EQ(result->get_header_value("Set-Cookie"), "a=b; HttpOnly");
}

TEST(HttpServerTest, SecondStartOnOnePortNamesTheAddress) {
  auto first = HttpServer::Start({});
  ASSERT_TRUE(first.ok()) << first.status();
  HttpOptions same;
  same.listen = (*first)->endpoint();
  EXPECT_EQ(HttpServer::Start(same).status().message(),
            absl::StrCat("listen on ", same.listen.ToString(), ": Address already in use"));
  (*first)->Stop();
  (*first)->Stop();
  const auto again = HttpServer::Start(same);
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST(HttpServerTest, OffLoopbackItIsTlsWithTheCertificateThatLiesThere) {
  const std::string folder = *MakePrivateDir("capstan-http");
  const KeyPair authority = *MakeAuthority("test", absl::Now(), absl::Hours(1));
  HttpOptions options;
  options.listen = *ParseEndpoint("0.0.0.0:0");
  options.security.tls_cert = folder + "/c";
  options.security.tls_key = folder + "/k";
  EXPECT_EQ(HttpServer::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
  const auto issue = [&](const std::string& host) {
    const KeyPair pair = *IssueCertificate(authority, {.identity = {Role::kWorker, "a"},
                                                       .hosts = {host},
                                                       .now = absl::Now(),
                                                       .lifetime = absl::Hours(1)});
    ASSERT_TRUE(WriteFileAtomically(options.security.tls_cert, pair.certificate).ok());
    ASSERT_TRUE(WriteFileAtomically(options.security.tls_key, pair.key).ok());
  };
  issue("127.0.0.1");
  ASSERT_TRUE(WriteFileAtomically(folder + "/ca", authority.certificate).ok());
  const auto server = HttpServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto get = [&](const std::string& host) {
    httplib::SSLClient client(host, (*server)->endpoint().port);
    client.set_ca_cert_path((folder + "/ca").c_str());
    const auto result = client.Get("/healthz");
    return result ? result->status : 0;
  };
  EXPECT_EQ(get("127.0.0.1"), 200);
  httplib::Client plain("127.0.0.1", (*server)->endpoint().port);
  EXPECT_FALSE(plain.Get("/healthz"));
  issue("10.1.2.3");
  EXPECT_EQ(get("127.0.0.1"), 0);
  issue("127.0.0.1");
  EXPECT_EQ(get("127.0.0.1"), 200);
  std::filesystem::remove_all(folder);
}

TEST(HttpServerTest, OffLoopbackNeedsACertificateOrInsecure) {
  HttpOptions options;
  options.listen = *ParseEndpoint("0.0.0.0:0");
  EXPECT_EQ(HttpServer::Start(options).status().code(), absl::StatusCode::kFailedPrecondition);
  options.security.insecure = true;
  EXPECT_TRUE(HttpServer::Start(options).ok());
}

TEST(HttpServerTest, EndpointMayBeOff) {
  EXPECT_FALSE(ParseHttpEndpoint("off")->has_value());
  EXPECT_FALSE(ParseHttpEndpoint("")->has_value());
  EXPECT_EQ((*ParseHttpEndpoint("127.0.0.1:7071"))->port, 7071);
  EXPECT_EQ(ParseHttpEndpoint("unix:/a").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(ParseHttpEndpoint("7071").ok());
}

}  // namespace
}  // namespace capstan::services
