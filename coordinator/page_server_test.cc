#include "coordinator/page_server.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/core/journal.h"
#include "services/files/files.h"
#include "services/security/tokens.h"

namespace capstan::coordinator {
namespace {

// With the prefix, browsers refuse the cookie unless this host has set it over TLS.
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
    // Otherwise the form's Origin looks to a server like a stranger's.
    EXPECT_TRUE(name != "Referrer-Policy" || value == "same-origin") << value;
  }
  // The form, which needs no token, keeps the job in the address.
  EXPECT_NE(http.routes["/"](services::HttpRequest()).body.find("<script src=\"/login.js\" defer>"),
            std::string::npos);
  const services::HttpResponse script = http.routes["/login.js"](services::HttpRequest());
  EXPECT_EQ(script.code, 200);
  EXPECT_NE(script.body.find("form.action += location.hash"), std::string::npos);
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
