#include "coordinator/registration.h"

#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/security/tokens.h"
#include "services/version/version.h"

namespace capstan::coordinator {
namespace {

using services::Identity;
using services::Role;
using ::testing::HasSubstr;
using ::testing::Not;

node::v1::Register Named(const std::string& name, common::v1::Role role) {
  node::v1::Register reg;
  reg.set_name(name);
  reg.set_role(role);
  return reg;
}

TEST(RegistrationTest, ACertificateRegistersItsOwnRoleAndNames) {
  const auto why = [](const Identity& caller, const std::string& name, common::v1::Role role) {
    const auto read = ReadRegistration(Named(name, role), caller);
    EXPECT_TRUE(read.ok() || absl::IsPermissionDenied(read.status())) << read.status();
    return std::string(read.status().message());
  };
  const Identity worker = {Role::kWorker, "node-a"};
  EXPECT_EQ(why(worker, "node-a", common::v1::ROLE_WORKER), "");
  EXPECT_EQ(why(worker, "node-a-1", common::v1::ROLE_WORKER), "");
  EXPECT_EQ(
      why(worker, "node-b", common::v1::ROLE_WORKER),
      "certificate node-a may not register node node-b: a certificate NAME has the nodes NAME "
      "and NAME-*");
  EXPECT_EQ(why(worker, "node-a", common::v1::ROLE_PARAM_STORE),
            "role worker may not register as ROLE_PARAM_STORE");
  EXPECT_EQ(why({Role::kParamStore, "node-a"}, "node-a", common::v1::ROLE_WORKER),
            "role param_store may not register as ROLE_WORKER");
  const Identity shard = {Role::kParamStore, "node-a"};
  EXPECT_EQ(why(shard, "node-a-shard", common::v1::ROLE_PARAM_STORE), "");
  EXPECT_EQ(
      why(shard, "node-b", common::v1::ROLE_PARAM_STORE),
      "certificate node-a may not register node node-b: a certificate NAME has the nodes NAME "
      "and NAME-*");
  EXPECT_EQ(why({Role::kWorker, "10.0.0.1"}, "anything", common::v1::ROLE_WORKER), "");
}

TEST(RegistrationTest, WhoseCertificateItIsTheCallerDoesNotSay) {
  node::v1::Register reg = Named("node-a", common::v1::ROLE_WORKER);
  reg.set_certificate("forged");
  auto read = ReadRegistration(reg, std::nullopt);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->reg.certificate(), "");
  EXPECT_FALSE(read->named);
  read = ReadRegistration(reg, Identity{Role::kWorker, "node-a.example.com"});
  EXPECT_EQ(read->reg.certificate(), "node-a.example.com");
  EXPECT_TRUE(read->named);
  EXPECT_FALSE(ReadRegistration(reg, Identity{Role::kWorker, "127.0.0.1"})->named);
}

TEST(RegistrationTest, AVersionOutsideOfThePromiseIsRefusedWithBoth) {
  const auto why = [](const std::string& theirs, const std::string& ours) {
    node::v1::Register reg = Named("node-a", common::v1::ROLE_WORKER);
    reg.set_version(theirs);
    const absl::Status status = CheckVersion(reg, ours);
    EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
    return std::string(status.message());
  };
  for (const char* ours : {"1.2.0", "1.2.7", "1.1.0", "1.3.4", "1.3.0-rc1"}) {
    EXPECT_EQ(why("1.2.3", ours), "") << ours;
    EXPECT_EQ(why(ours, "1.2.3"), "") << ours;
  }
  EXPECT_EQ(why("", "1.2.3"), "");
  EXPECT_EQ(why("1.4.0", "1.2.3"),
            "node node-a has version 1.4.0, this coordinator 1.2.3: versions work together "
            "if the first number is the same and the second differs by at most 1; see "
            "docs/upgrades.md");
  for (const char* theirs : {"1.0.9", "2.2.3", "0.2.3", "1.2", "one", "1.x.0", "-1.2.0"}) {
    EXPECT_THAT(why(theirs, "1.2.3"), HasSubstr(theirs));
  }
  // Every node's version is checked.
  node::v1::Register reg = Named("node-a", common::v1::ROLE_WORKER);
  reg.set_version("99.0.0");
  EXPECT_TRUE(absl::IsFailedPrecondition(ReadRegistration(reg, std::nullopt).status()));
  reg.set_version(std::string(Version()));
  EXPECT_TRUE(ReadRegistration(reg, std::nullopt).ok());
}

TEST(RegistrationTest, OfAKeyTheHashAloneIsKept) {
  node::v1::Register reg = Named("node-a", common::v1::ROLE_WORKER);
  reg.set_resume_key("0123456789abcdef");
  const auto read = ReadRegistration(reg, std::nullopt);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->reg.resume_key(), services::HashToken("0123456789abcdef"));
  EXPECT_THAT(read->reg.SerializeAsString(), Not(HasSubstr("0123456789abcdef")));
  // A key that an older coordinator has stored becomes the same hash; a hash stays.
  KeepHashOfKey(reg);
  KeepHashOfKey(reg);
  EXPECT_EQ(reg.resume_key(), read->reg.resume_key());

  // Neither the hash nor a shorter key is accepted.
  EXPECT_EQ(ReadRegistration(reg, std::nullopt).status().code(),
            absl::StatusCode::kInvalidArgument);
  reg.set_resume_key("0");
  EXPECT_THAT(std::string(ReadRegistration(reg, std::nullopt).status().message()),
              HasSubstr("register.resume_key: 1 bytes, want 16"));
}

}  // namespace
}  // namespace capstan::coordinator
