#include "coordinator/path_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "services/files/files.h"

namespace capstan::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

job::v1::JobSpec Reads(const std::string& uri) {
  job::v1::JobSpec spec;
  spec.mutable_data()->set_uri(uri);
  return spec;
}
job::v1::JobSpec Writes(const std::string& uri) {
  job::v1::JobSpec spec;
  spec.mutable_checkpoint()->set_storage_path(uri);
  return spec;
}

TEST(PathPolicyTest, RootsHoldWholeComponents) {
  const auto policy = PathPolicy::Create({"file:///data/sets"}, {"/out/"});
  ASSERT_TRUE(policy.ok());
  EXPECT_THAT(policy->Check(Reads("file:///data/sets")), IsEmpty());
  EXPECT_THAT(policy->Check(Reads("file:///data//sets/./mnist")), IsEmpty());
  EXPECT_THAT(policy->Check(Reads("file:///data/sets2")), SizeIs(1));
  EXPECT_THAT(policy->Check(Reads("file:///out/x")), SizeIs(1));  // a root for writing only
  EXPECT_THAT(policy->Check(Writes("file:///out/x")), IsEmpty());
  const auto violations = policy->Check(Writes("file:///etc"));
  ASSERT_THAT(violations, SizeIs(1));
  EXPECT_EQ(violations[0].field, "checkpoint.storage_path");
  EXPECT_THAT(violations[0].description, HasSubstr("lies under no --checkpoint-root"));
}

TEST(PathPolicyTest, WaysOutAreRefused) {
  const auto policy = PathPolicy::Create({"file:///data"}, {});
  for (const char* uri : {"file:///data/../etc/passwd", "http://169.254.169.254/", "data/x",
                          "file://host/data/x", "s3://bucket/x"}) {
    EXPECT_THAT(policy->Check(Reads(uri)), SizeIs(1)) << uri;
  }
  job::v1::JobSpec spec;
  spec.mutable_model()->set_initial_weights("file:///etc/w.safetensors");
  EXPECT_EQ(policy->Check(spec)[0].field, "model.initial_weights");
}

TEST(PathPolicyTest, NothingIsAllowedByDefaultAndTheRootOfAllAllowsAll) {
  const auto none = PathPolicy::Create({}, {});
  EXPECT_THAT(none->Check(Reads("file:///data")), SizeIs(1));
  EXPECT_THAT(none->Check(job::v1::JobSpec()), IsEmpty());
  const auto all = PathPolicy::Create({"file:///"}, {"file:///"});
  EXPECT_THAT(all->Check(Reads("file:///any/where")), IsEmpty());
  EXPECT_FALSE(PathPolicy::Create({"relative"}, {}).ok());
  EXPECT_FALSE(PathPolicy::Create({}, {"http://x"}).ok());
}

TEST(PathPolicyTest, ALinkOutOfTheRootIsRefused) {
  const std::string dir = *services::MakePrivateDir("policy-test");
  ASSERT_TRUE(services::EnsureDir(dir + "/root/inside").ok());
  ASSERT_TRUE(services::EnsureDir(dir + "/outside").ok());
  ASSERT_EQ(::symlink((dir + "/outside").c_str(), (dir + "/root/out").c_str()), 0);
  ASSERT_EQ(::symlink((dir + "/root/inside").c_str(), (dir + "/root/in").c_str()), 0);
  const auto policy = PathPolicy::Create({}, {dir + "/root"});
  EXPECT_THAT(policy->Check(Writes("file://" + dir + "/root/in/new/folder")), IsEmpty());
  EXPECT_THAT(policy->Check(Writes("file://" + dir + "/root/out/new")), SizeIs(1));
  (void)services::RemoveTree("/tmp", dir);
}

}  // namespace
}  // namespace capstan::coordinator
