#include "services/security/tokens.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/files/files.h"

namespace capstan::services {
namespace {

using ::testing::HasSubstr;

const absl::Time kTokenNow = absl::FromUnixSeconds(1'800'000'000);

class TokensTest : public ::testing::Test {
 protected:
  TokensTest() : folder_(*MakePrivateDir("capstan-tokens")) {}
  ~TokensTest() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& text, mode_t mode = 0600) {
    const std::string path = absl::StrCat(folder_, "/", name);
    EXPECT_TRUE(WriteFileAtomically(path, text, {.mode = mode, .sync = false}).ok());
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    absl::SleepFor(kTokensFresh + absl::Milliseconds(1));  // from then on the change counts
    return path;
  }
  const std::string folder_;
};

TEST_F(TokensTest, TheTableKnowsHashesOnlyAndForgetsOnTime) {
  // FIPS 180-4, the example "abc".
  EXPECT_EQ(HashToken("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string token = MakeToken();
  EXPECT_NE(token, MakeToken());
  EXPECT_EQ(token.size(), kTokenPrefix.size() + 43);
  const std::string text =
      FormatTokens({{HashToken(token), {Role::kWorker, "node-a"}, kTokenNow + absl::Hours(1)}});
  EXPECT_THAT(text, Not(HasSubstr(token)));

  auto table = *TokenTable::Open(Write("tokens.json", text));
  EXPECT_EQ(table->Find(token, kTokenNow), (Identity{Role::kWorker, "node-a"}));
  EXPECT_EQ(table->Find(token, kTokenNow + absl::Hours(1)), std::nullopt);
  EXPECT_EQ(table->Find(HashToken(token), kTokenNow), std::nullopt);  // as in the file
  EXPECT_EQ(table->Find("", kTokenNow), std::nullopt);
}

TEST_F(TokensTest, AChangedTableCountsAtTheNextCallAndABrokenOneDoesNot) {
  const std::string text =
      FormatTokens({{HashToken("one"), {Role::kClient, "ann"}, kTokenNow + absl::Hours(1)}});
  const std::string path = Write("tokens.json", text);
  auto table = *TokenTable::Open(path);
  ASSERT_TRUE(table->Find("one", kTokenNow).has_value());
  for (const char* broken : {"{", R"({"version": "1", "tokens": []})", R"({"version": 1})"}) {
    Write("tokens.json", broken);
    EXPECT_TRUE(table->Find("one", kTokenNow).has_value()) << broken;
  }
  Write("tokens.json", text, 0644);
  EXPECT_TRUE(table->Find("one", kTokenNow).has_value());
  Write("tokens.json", FormatTokens({}));
  EXPECT_FALSE(table->Find("one", kTokenNow).has_value());
}

TEST_F(TokensTest, AFileThatOthersMayReadIsNoSecret) {
  const std::string path = Write("t", absl::StrCat(MakeToken(), "\n"));
  for (const mode_t mode : {0644, 0640, 0660, 0604, 0700, 0444}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    const auto file = TokenFile::Open(path);
    EXPECT_EQ(file.status().code(), absl::StatusCode::kFailedPrecondition) << mode;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("mode 0"));
  }
  for (const mode_t mode : {0600, 0400, 0440}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_TRUE(TokenFile::Open(path).ok()) << mode;
  }
  EXPECT_FALSE(TokenFile::Open(folder_).ok());
  EXPECT_EQ(TokenFile::Open(folder_ + "/none").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(TokensTest, AMessageNeverHoldsWhatTheFileHolds) {
  const std::string secret = "secret with spaces 0123456789";
  const auto file = TokenFile::Open(Write("t", secret));
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(std::string(file.status().message()), Not(HasSubstr("secret with")));
}

TEST_F(TokensTest, WhoReadsATokenLeavesNoCoreFileAndIsNotTraced) {
  ASSERT_EQ(prctl(PR_SET_DUMPABLE, 1), 0);
  ASSERT_TRUE(TokenFile::Open(Write("t", MakeToken())).ok());
  EXPECT_EQ(prctl(PR_GET_DUMPABLE), 0);
  rlimit core = {};
  ASSERT_EQ(getrlimit(RLIMIT_CORE, &core), 0);
  EXPECT_EQ(core.rlim_cur, 0u);
  EXPECT_EQ(core.rlim_max, 0u);
}

TEST_F(TokensTest, ANewTokenCountsAtTheNextCall) {
  const std::string path = Write("t", "first-token-of-test");
  auto file = *TokenFile::Open(path);
  EXPECT_EQ(file->Get(), "first-token-of-test");
  Write("t", "second-token-of-test\n");
  EXPECT_EQ(file->Get(), "second-token-of-test");
  unlink(path.c_str());
  EXPECT_EQ(file->Get(), "second-token-of-test");
}

TEST_F(TokensTest, ATableThatIsWrongSaysWhere) {
  const std::string hash(64, 'a');
  const auto why = [](const std::string& text) {
    return std::string(ParseTokens("f", text).status().message());
  };
  const std::string good = absl::StrCat(R"({"sha256": ")", hash,
                                        R"(", "role": "client", "name": "a", "expires": )"
                                        R"("2027-01-01T00:00:00Z"})");
  EXPECT_TRUE(ParseTokens("f", absl::StrCat(R"({"version": 1, "tokens": [)", good, "]}")).ok());
  EXPECT_THAT(why("[]"), HasSubstr("f: want {\"version\""));
  EXPECT_THAT(why(R"({"version": 2, "tokens": []})"), HasSubstr("f: want"));
  EXPECT_THAT(why(absl::StrCat(R"({"version": 1, "tokens": [)", good, ",", good, "]}")),
              HasSubstr("f: tokens[1]: the same token as tokens[0]"));
  for (const auto& [from, to, message] :
       {std::tuple{"client", "root", "role 'root'"}, std::tuple{"2027-01", "2027", "'expires'"},
        std::tuple{"\"a\"", "\"A\"", "name 'A'"}, std::tuple{"aaaa", "AAAA", "'sha256'"},
        std::tuple{"\"a\"", "7", "'name': want a string"}}) {
    std::string bad = good;
    bad.replace(bad.find(from), std::string(from).size(), to);
    EXPECT_THAT(why(absl::StrCat(R"({"version": 1, "tokens": [)", bad, "]}")), HasSubstr(message));
  }
}

}  // namespace
}  // namespace capstan::services
