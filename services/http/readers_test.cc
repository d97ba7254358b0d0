#include "services/http/readers.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/files/files.h"
#include "services/security/tokens.h"

namespace capstan::services {
namespace {

using Access = Readers::Access;

TEST(MetricsAccessTest, OffLoopbackATokenIsNeededUnlessTheyAreOpened) {
  Security security;
  bool open_metrics = false;
  const auto open = [&](const char* http) {
    return MetricsAreOpen(security, open_metrics, *ParseEndpoint(http));
  };
  EXPECT_TRUE(open("127.0.0.1:7071"));
  EXPECT_TRUE(open("[::1]:7071"));
  EXPECT_TRUE(open("localhost:7071"));
  EXPECT_FALSE(open("0.0.0.0:7071"));
  EXPECT_FALSE(open("10.0.0.5:7071"));
  security.insecure = true;
  EXPECT_TRUE(open("0.0.0.0:7071"));  // no token is needed anywhere
  security.tokens = "tokens.json";
  EXPECT_FALSE(open("0.0.0.0:7071"));
  open_metrics = true;
  EXPECT_TRUE(open("0.0.0.0:7071"));
}

class ReadersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Time later = absl::Now() + absl::Hours(1);
    ASSERT_TRUE(
        WriteFileAtomically(path_,
                            FormatTokens({{HashToken(ann_), {Role::kClient, "ann"}, later},
                                          {HashToken(root_), {Role::kAdmin, "root"}, later},
                                          {HashToken(node_), {Role::kWorker, "w0"}, later}}),
                            {.mode = 0600, .sync = false})
            .ok());
  }
  void TearDown() override { (void)RemoveTree("/tmp", dir_); }
  static std::unique_ptr<Readers> Of(const std::string& tokens, bool insecure = false) {
    Security security;
    security.tokens = tokens;
    security.insecure = insecure;
    return *Readers::Create(security);
  }
  static HttpRequest With(const std::string& token) {
    HttpRequest request;
    if (!token.empty()) request.headers["authorization"] = absl::StrCat("Bearer ", token);
    return request;
  }

  const std::string dir_ = *MakePrivateDir("readers-test");
  const std::string path_ = absl::StrCat(dir_, "/tokens.json");
  const std::string ann_ = MakeToken(), root_ = MakeToken(), node_ = MakeToken();
};

TEST_F(ReadersTest, TokensOfPeopleLetIn) {
  const auto readers = Of(path_);
  std::optional<Identity> who;
  EXPECT_EQ(readers->Check(With(ann_), &who), Access::kGranted);
  EXPECT_EQ(who, (Identity{Role::kClient, "ann"}));
  EXPECT_EQ(readers->Check(With(root_), &who), Access::kGranted);
  EXPECT_EQ(who, (Identity{Role::kAdmin, "root"}));
  EXPECT_EQ(readers->Check(With(node_), &who), Access::kWrongToken);
  EXPECT_FALSE(who.has_value());
  EXPECT_EQ(readers->Check(With(MakeToken())), Access::kWrongToken);
  EXPECT_EQ(readers->Check(With("")), Access::kNoToken);
  for (const bool tls : {false, true}) {
    HttpRequest request;
    request.tls = tls;
    request.headers["cookie"] = absl::StrCat(TokenCookieName(tls), "=", ann_);
    EXPECT_EQ(readers->Check(request), Access::kGranted);
    request.tls = !tls;
    EXPECT_EQ(readers->Check(request), Access::kNoToken);
  }
}

TEST_F(ReadersTest, WithoutTokensNobodyIsAReaderOrWithInsecureEverybody) {
  EXPECT_EQ(Of("")->Check(With(ann_)), Access::kClosed);
  std::optional<Identity> who;
  EXPECT_EQ(Of("", /*insecure=*/true)->Check(With(""), &who), Access::kGranted);
  EXPECT_FALSE(who.has_value());
  EXPECT_FALSE(Readers::Create({.tokens = dir_ + "/none"}).ok());
}

TEST_F(ReadersTest, WithoutATokenNothingIsSaidButWhatToDo) {
  const auto readers = Of(path_), closed = Of("");
  const HttpHandler secret = [](const HttpRequest&) { return HttpResponse{.body = "j-ann"}; };
  const Endpoint everywhere = *ParseEndpoint("0.0.0.0:7071");
  const HttpHandler metrics = readers->ForMetrics(secret, /*open_metrics=*/false, everywhere);
  const HttpResponse answer = metrics(With(""));
  EXPECT_EQ(answer.code, 401);
  EXPECT_NE(answer.body.find("--open-metrics"), std::string::npos);
  EXPECT_EQ(answer.body.find("ann"), std::string::npos);
  EXPECT_EQ(metrics(With(node_)).code, 401);
  EXPECT_EQ(metrics(With(ann_)).code, 200);
  EXPECT_EQ(closed->ForMetrics(secret, false, everywhere)(With(ann_)).code, 401);
  EXPECT_EQ(readers->ForMetrics(secret, true, everywhere)(With("")).code, 200);
  EXPECT_EQ(readers->ForMetrics(secret, false, *ParseEndpoint("127.0.0.1:7071"))(With("")).code,
            200);
}

}  // namespace
}  // namespace capstan::services
