#include "services/http/http_server.h"

#include <httplib.h>

#include <atomic>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/metrics/registry.h"

namespace capstan::services {
namespace {

using ::testing::HasSubstr;

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

TEST(HttpServerTest, OffLoopbackNeedsInsecure) {
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
