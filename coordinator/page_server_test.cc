#include "coordinator/page_server.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/config.h"
#include "coordinator/core/journal.h"
#include "services/files/files.h"
#include "services/security/tokens.h"

namespace capstan::coordinator {
namespace {

struct Pages {
  explicit Pages(const std::string& tokens, bool insecure = false) {
    core::CoreOptions options;
    options.validate = [](const job::v1::JobSpec&) { return absl::OkStatus(); };
    options.resolve = [](const auto&...) { return job::v1::ResolvedSpec(); };
    coordinator =
        std::make_unique<Coordinator>(Coordinator::Options{.core = options, .journal = &journal});
    services::Security security;
    security.tokens = tokens;
    security.insecure = insecure;
    page = *PageServer::Create(*coordinator, security);
  }
  core::MemoryJournal journal;
  std::unique_ptr<Coordinator> coordinator;
  std::unique_ptr<PageServer> page;
};

TEST(MetricsAccessTest, OffLoopbackATokenIsNeededUnlessTheyAreOpened) {
  Config config;
  const auto open = [&config](const char* http) {
    return MetricsAreOpen(config, *services::ParseEndpoint(http));
  };
  EXPECT_TRUE(open("127.0.0.1:7071"));
  EXPECT_TRUE(open("[::1]:7071"));
  EXPECT_TRUE(open("localhost:7071"));
  EXPECT_FALSE(open("0.0.0.0:7071"));
  EXPECT_FALSE(open("10.0.0.5:7071"));
  config.common.security.insecure = true;
  EXPECT_TRUE(open("0.0.0.0:7071"));  // nobody is asked for anything
  config.common.security.tokens = "tokens.json";
  EXPECT_FALSE(open("0.0.0.0:7071"));
  config.open_metrics = true;
  EXPECT_TRUE(open("0.0.0.0:7071"));
}

TEST(MetricsAccessTest, WithoutATokenNothingIsSaidButWhatToDo) {
  const std::string dir = *services::MakePrivateDir("page-test");
  const std::string path = absl::StrCat(dir, "/tokens.json");
  const absl::Time later = absl::Now() + absl::Hours(1);
  const std::string ann = services::MakeToken(), worker = services::MakeToken();
  ASSERT_TRUE(services::WriteFileAtomically(
                  path,
                  services::FormatTokens(
                      {{services::HashToken(ann), {services::Role::kClient, "ann"}, later},
                       {services::HashToken(worker), {services::Role::kWorker, "w0"}, later}}),
                  {.mode = 0600, .sync = false})
                  .ok());
  Pages pages(path), closed("");
  const auto secret = [](const services::HttpRequest&) {
    return services::HttpResponse{.body = "user=\"ann\""};
  };
  const services::HttpHandler metrics = pages.page->ForReaders(secret);
  services::HttpRequest request;
  services::HttpResponse answer = metrics(request);
  EXPECT_EQ(answer.code, 401);
  EXPECT_NE(answer.body.find("--open-metrics"), std::string::npos);
  EXPECT_EQ(answer.body.find("ann"), std::string::npos);
  request.headers["authorization"] = absl::StrCat("Bearer ", worker);
  EXPECT_EQ(metrics(request).code, 401);
  request.headers["authorization"] = absl::StrCat("Bearer ", ann);
  EXPECT_EQ(metrics(request).code, 200);
  EXPECT_EQ(closed.page->ForReaders(secret)(request).code, 401);  // it knows no tokens
  (void)services::RemoveTree("/tmp", dir);
}

// The prefix has browsers refuse a cookie that did not come over TLS, from this host alone.
TEST(PageCookieTest, OverTlsTheCookieHasThePrefixAndOnlyThatOneCounts) {
  const std::string dir = *services::MakePrivateDir("page-test");
  const std::string token = services::MakeToken();
  const std::string tokens = services::FormatTokens({{services::HashToken(token),
                                                      {services::Role::kClient, "ann"},
                                                      absl::Now() + absl::Hours(1)}});
  const std::string path = absl::StrCat(dir, "/tokens.json");
  ASSERT_TRUE(services::WriteFileAtomically(path, tokens, {.mode = 0600, .sync = false}).ok());
  core::MemoryJournal journal;
  core::CoreOptions options;
  options.validate = [](const job::v1::JobSpec&) { return absl::OkStatus(); };
  options.resolve = [](const auto&...) { return job::v1::ResolvedSpec(); };
  Coordinator coordinator({.core = options, .journal = &journal});
  services::Security security;
  security.tokens = path;
  const auto page = PageServer::Create(coordinator, security);
  ASSERT_TRUE(page.ok()) << page.status();
  services::HttpOptions http;
  (*page)->AddRoutes(http);
  for (const auto& [name, value] : http.routes["/"](services::HttpRequest()).headers) {
    // Else its form comes with an Origin that no server can tell from a stranger's.
    EXPECT_TRUE(name != "Referrer-Policy" || value == "same-origin") << value;
  }
  for (const bool tls : {false, true}) {
    services::HttpRequest request;
    request.tls = tls;
    request.parameters.emplace("token", token);
    std::string cookie;
    for (const auto& [name, value] : http.posts["/login"](request).headers) {
      if (name == "Set-Cookie") cookie = value;
    }
    const std::string name = tls ? "__Host-capstan_token" : "capstan_token";
    EXPECT_EQ(cookie, absl::StrCat(name, "=", token, "; Path=/; HttpOnly; SameSite=Strict",
                                   tls ? "; Secure" : ""));
    request.headers["cookie"] = absl::StrCat(name, "=", token);
    EXPECT_EQ(http.routes["/page.js"](request).code, 200);
    request.headers["cookie"] = absl::StrCat(tls ? "" : "__Host-", "capstan_token=", token);
    EXPECT_EQ(http.routes["/page.js"](request).code, 401);
  }
  (void)services::RemoveTree("/tmp", dir);
}

}  // namespace
}  // namespace capstan::coordinator
