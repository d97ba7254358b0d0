#include "services/http/http_names.h"

#include "gtest/gtest.h"

namespace capstan::services {
namespace {

TEST(HttpNamesTest, NamesThatAStrangerCanRegisterAreNotOurs) {
  for (const char* host :
       {"127.0.0.1", "127.0.0.1:7071", "10.0.0.7:80", "[::1]:7071", "[fe80::1]", "localhost:7071",
        "LOCALHOST", "node7", "coordinator:7071", "a.localhost", "c.ns.svc.cluster.local:7071",
        "c.ns.svc", "node7.internal.", "gpu.example.com:7071", "GPU.example.com"}) {
    EXPECT_TRUE(IsOwnHost(host, {"gpu.example.com"})) << host;
  }
  for (const char* host :
       {"", ":7071", "evil.com", "evil.com:7071", "127.0.0.1.evil.com", "localhost.evil.com",
        "gpu.example.com.evil.com", "local.com", "[::1].evil.com", "[::1", "1.2.3.4.nip.io"}) {
    EXPECT_FALSE(IsOwnHost(host, {"gpu.example.com"})) << host;
  }
}

int CodeOf(bool tls, const std::string& host, const std::string& origin) {
  HttpRequest request{.path = "/", .parameters = {}, .headers = {}, .tls = tls};
  if (!host.empty()) request.headers["host"] = host;
  if (!origin.empty()) request.headers["origin"] = origin;
  return RefusalOfSource(request, {}).code;
}

TEST(HttpNamesTest, PagesOfOtherSitesAreRefused) {
  EXPECT_EQ(CodeOf(false, "127.0.0.1:7071", ""), 200);
  EXPECT_EQ(CodeOf(false, "", ""), 200);
  EXPECT_EQ(CodeOf(false, "127.0.0.1:7071", "http://127.0.0.1:7071"), 200);
  EXPECT_EQ(CodeOf(true, "c.example.com", "https://c.example.com"), 200);
  EXPECT_EQ(CodeOf(true, "c.example.com", "http://c.example.com"), 403);
  EXPECT_EQ(CodeOf(false, "node7", "https://node7"), 200);  // behind a proxy that speaks TLS
  EXPECT_EQ(CodeOf(false, "evil.com:7071", ""), 421);
  EXPECT_EQ(CodeOf(false, "evil.com:7071", "http://evil.com:7071"), 421);
  EXPECT_EQ(CodeOf(true, "c.example.com", ""), 200);  // the certificate proves the name
  for (const char* origin : {"http://evil.com", "null", "https://127.0.0.1:7072",
                             "http://127.0.0.1:80", "http://127.0.0.1:7071.evil.com"}) {
    EXPECT_EQ(CodeOf(false, "127.0.0.1:7071", origin), 403) << origin;
  }
  EXPECT_EQ(CodeOf(false, "", "http://127.0.0.1"), 403);
}

}  // namespace
}  // namespace capstan::services
