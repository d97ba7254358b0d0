#include "client/certs.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/files/files.h"
#include "services/security/certificates.h"
#include "services/security/tokens.h"

namespace capstan::client {
namespace {

using services::Identity;
using services::Role;
using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

class CertsTest : public ::testing::Test {
 protected:
  CertsTest() : root_(*services::MakePrivateDir("capstan-certs")) {
    EXPECT_TRUE(InitCerts({.folder = Ca()}, kNow).ok());
  }
  ~CertsTest() override { std::filesystem::remove_all(root_); }
  std::string Ca() const { return root_ + "/ca"; }
  std::string Path(const std::string& name) const { return root_ + "/" + name; }
  std::string Read(const std::string& name) const {
    return *services::ReadWholeFile(Path(name), 1 << 20);
  }
  int Mode(const std::string& name) const {
    struct stat info;
    return stat(Path(name).c_str(), &info) == 0 ? static_cast<int>(info.st_mode & 07777) : -1;
  }
  std::unique_ptr<services::TokenTable> Tokens() const {
    return *services::TokenTable::Open(Ca() + "/tokens.json");
  }
  std::string Token(const std::string& name) const {
    return std::string(absl::StripAsciiWhitespace(Read(name)));
  }
  CertsIssueOptions Worker() const {
    return {.role = Role::kWorker,
            .hosts = {"Node-A", "10.0.0.1"},
            .authority = Ca(),
            .out = Path("out")};
  }
  const std::string root_;
};

TEST_F(CertsTest, SecretsAreTheirOwnersAloneAndTheCertificateHolds) {
  umask(077);
  EXPECT_EQ(*IssueCerts(Worker(), kNow), (Identity{Role::kWorker, "node-a"}));
  EXPECT_EQ(Mode("ca"), 0700);
  EXPECT_EQ(Mode("out"), 0700);
  for (const char* secret : {"ca/ca.key", "ca/tokens.json", "out/worker.key", "out/worker.token"}) {
    EXPECT_EQ(Mode(secret), 0600) << secret;
  }
  for (const char* open : {"ca/ca.crt", "out/worker.crt", "out/ca.crt"}) {
    EXPECT_EQ(Mode(open), 0644) << open;
  }
  EXPECT_TRUE(services::CheckKeyPair({Read("out/worker.crt"), Read("out/worker.key")},
                                     Read("out/ca.crt"), kNow)
                  .ok());
  EXPECT_EQ(*services::IdentityOf(Read("out/worker.crt")), (Identity{Role::kWorker, "node-a"}));
  EXPECT_EQ(Tokens()->Find(Token("out/worker.token"), kNow), (Identity{Role::kWorker, "node-a"}));
  EXPECT_THAT(Read("ca/tokens.json"), Not(HasSubstr(Token("out/worker.token"))));
}

TEST_F(CertsTest, NothingIsReplacedWithoutForceAndForceWithdrawsTheOldToken) {
  EXPECT_EQ(InitCerts({.folder = Ca()}, kNow).code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(IssueCerts(Worker(), kNow).ok());
  const std::string before = Token("out/worker.token");
  const std::string table = Read("ca/tokens.json");
  EXPECT_THAT(std::string(IssueCerts(Worker(), kNow).status().message()),
              HasSubstr("worker.key: exists already; --force"));
  EXPECT_EQ(Read("ca/tokens.json"), table);
  EXPECT_EQ(Token("out/worker.token"), before);

  CertsIssueOptions again = Worker();
  again.force = true;
  ASSERT_TRUE(IssueCerts(again, kNow).ok());
  EXPECT_FALSE(Tokens()->Find(before, kNow).has_value());
  EXPECT_TRUE(Tokens()->Find(Token("out/worker.token"), kNow).has_value());
}

TEST_F(CertsTest, ATokenThatIsReplacedMayStayValidForAWhile) {
  EXPECT_TRUE(IssueCerts(Worker(), kNow).ok());
  const std::string old = Token("out/worker.token");
  CertsIssueOptions again = Worker();
  again.force = true;
  again.overlap_days = 2;
  const absl::Time later = kNow + absl::Hours(1);
  EXPECT_TRUE(IssueCerts(again, later).ok());
  const std::string fresh = Token("out/worker.token");
  EXPECT_NE(fresh, old);
  const Identity node = {Role::kWorker, "node-a"};
  EXPECT_EQ(Tokens()->Find(old, later + absl::Hours(47)), node);
  EXPECT_EQ(Tokens()->Find(old, later + absl::Hours(49)), std::nullopt);
  EXPECT_EQ(Tokens()->Find(fresh, later + absl::Hours(49)), node);
  // The replaced token does not live longer than it would have lived anyway.
  again.overlap_days = 365;
  const absl::Time last = kNow + absl::Hours(24) * 365;
  EXPECT_TRUE(IssueCerts(again, last).ok());
  EXPECT_EQ(Tokens()->Find(fresh, last + absl::Minutes(59)), node);
  EXPECT_EQ(Tokens()->Find(fresh, last + absl::Minutes(61)), std::nullopt);
}

TEST_F(CertsTest, AnAuthorityIsChangedWhileBothHold) {
  EXPECT_TRUE(IssueCerts(Worker(), kNow).ok());
  const services::KeyPair before = {Read("out/worker.crt"), Read("out/worker.key")};
  const std::string old_root = Read("ca/ca.crt");
  const std::string token = Token("out/worker.token");
  EXPECT_THAT(RotateCerts({.folder = Ca(), .finish = true}, kNow).message(),
              HasSubstr("holds one authority; `capstan certs rotate"));

  EXPECT_TRUE(RotateCerts({.folder = Ca()}, kNow).ok());
  EXPECT_EQ(Mode("ca/ca.crt"), 0644);
  EXPECT_EQ(Mode("ca/ca.key"), 0600);
  EXPECT_TRUE(Tokens()->Find(token, kNow).has_value());
  EXPECT_THAT(RotateCerts({.folder = Ca()}, kNow).message(),
              HasSubstr("holds 2 authorities; `capstan certs rotate"));
  CertsIssueOptions again = Worker();
  again.force = true;
  EXPECT_TRUE(IssueCerts(again, kNow).ok());
  const services::KeyPair after = {Read("out/worker.crt"), Read("out/worker.key")};
  const std::string both = Read("out/ca.crt");
  EXPECT_EQ(both, Read("ca/ca.crt"));
  EXPECT_TRUE(services::CheckKeyPair(before, both, kNow).ok());
  EXPECT_TRUE(services::CheckKeyPair(after, both, kNow).ok());
  EXPECT_FALSE(services::CheckKeyPair(after, old_root, kNow).ok());

  EXPECT_TRUE(RotateCerts({.folder = Ca(), .finish = true}, kNow).ok());
  const std::string new_root = Read("ca/ca.crt");
  EXPECT_EQ(new_root + old_root, both);
  EXPECT_TRUE(services::CheckKeyPair(after, new_root, kNow).ok());
  EXPECT_FALSE(services::CheckKeyPair(before, new_root, kNow).ok());
  EXPECT_EQ(RotateCerts({.folder = Path("none")}, kNow).code(), absl::StatusCode::kNotFound);
}

TEST_F(CertsTest, ExpiredTokensLeaveTheTable) {
  ASSERT_TRUE(IssueCerts(Worker(), kNow).ok());
  const CertsIssueOptions ann = {
      .role = Role::kClient, .name = "ann", .authority = Ca(), .out = Path("ann")};
  ASSERT_TRUE(IssueCerts(ann, kNow + absl::Hours(24 * 366)).ok());
  const auto tokens = services::ParseTokens("t", Read("ca/tokens.json"));
  ASSERT_EQ(tokens->size(), 1u);
  EXPECT_EQ((*tokens)[0].identity, (Identity{Role::kClient, "ann"}));
}

TEST_F(CertsTest, WhatIsMissingIsNamed) {
  CertsIssueOptions options = Worker();
  options.hosts.clear();
  EXPECT_THAT(std::string(IssueCerts(options, kNow).status().message()),
              HasSubstr("--host: a worker needs"));
  options = Worker();
  options.authority = Path("none");
  EXPECT_THAT(std::string(IssueCerts(options, kNow).status().message()),
              HasSubstr("`capstan certs init"));
  options = Worker();
  options.name = "../x";
  EXPECT_EQ(IssueCerts(options, kNow).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Mode("out"), -1);  // nothing was written
}

TEST_F(CertsTest, TheFilesCanBelongToTheUserOfAContainer) {
  CertsIssueOptions options = Worker();
  options.uid = 1000;
  const auto issued = IssueCerts(options, kNow);
  if (geteuid() != 0) {
    EXPECT_EQ(issued.status().code(), absl::StatusCode::kPermissionDenied);
    return;
  }
  for (const char* file : {"out", "out/worker.key", "out/worker.token", "out/worker.crt"}) {
    struct stat info;
    ASSERT_EQ(stat(Path(file).c_str(), &info), 0);
    EXPECT_EQ(info.st_uid, 1000u) << file;
  }
}

}  // namespace
}  // namespace capstan::client
