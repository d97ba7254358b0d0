#include "coordinator/path_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "services/files/files.h"

namespace capstan::coordinator {
namespace {

using ::testing::ElementsAre;
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
  EXPECT_THAT(policy->Check(Reads("file:///out/x")), SizeIs(1));  // this root is only for writing
  EXPECT_THAT(policy->Check(Writes("file:///out/x")), IsEmpty());
  const auto violations = policy->Check(Writes("file:///etc"));
  ASSERT_THAT(violations, SizeIs(1));
  EXPECT_EQ(violations[0].field, "checkpoint.storage_path");
  EXPECT_THAT(violations[0].description, HasSubstr("is not under any --checkpoint-root"));
}

TEST(PathPolicyTest, ACheckpointToBeginFromMayLieWhereCheckpointsDo) {
  const auto policy = PathPolicy::Create({"file:///data"}, {"/out"});
  ASSERT_TRUE(policy.ok());
  const auto begins = [&](const std::string& uri) {
    job::v1::JobSpec spec;
    spec.mutable_model()->set_initial_weights(uri);
    return policy->Check(spec);
  };
  for (const char* uri : {"/out/j/1-40", "file:///out/j/1-40/", "/out/j/1-40/manifest.json",
                          "/data/1-40", "/data/w.safetensors"}) {
    EXPECT_THAT(begins(uri), IsEmpty()) << uri;
  }
  for (const char* uri : {"/out/j/1-40/weights.safetensors", "/out/j/1-", "/out/j/-40",
                          "/out/j/1-4x", "/out/j/manifest", "/etc/1-40"}) {
    ASSERT_THAT(begins(uri), SizeIs(1)) << uri;
    EXPECT_EQ(begins(uri)[0].field, "model.initial_weights");
  }
  EXPECT_THAT(begins("/etc/1-40")[0].description,
              HasSubstr("is not under any --data-root or --checkpoint-root of the coordinator"));
  EXPECT_TRUE(policy->IsData("/data/x"));
  EXPECT_FALSE(policy->IsData("/out/x"));
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
  const auto check = [&policy, &dir](const std::string& below) {
    std::vector<PathPolicy::Claim> claims;
    EXPECT_THAT(policy->Check(Writes("file://" + dir + below), &claims), IsEmpty());
    EXPECT_THAT(claims, SizeIs(1));
    return PathPolicy::CheckLinks(claims[0]).violations;
  };
  EXPECT_THAT(check("/root/in/new/folder"), IsEmpty());
  EXPECT_THAT(check("/root/out/new"), SizeIs(1));
  // Folders that jobs have written to. Neither they nor folders inside are allowed for other jobs.
  ASSERT_TRUE(services::EnsureDir(dir + "/root/in/net-abc123/4-100").ok());
  ASSERT_TRUE(services::EnsureDir(dir + "/root/in/2026-11").ok());
  ASSERT_TRUE(
      services::WriteFileAtomically(dir + "/root/in/net-abc123/4-100/manifest.json", "{}").ok());
  EXPECT_THAT(check("/root/in/2026-11/x"), IsEmpty());  // a month
  EXPECT_THAT(check("/root/in"), IsEmpty());
  EXPECT_THAT(check("/root/in/other"), IsEmpty());
  for (const char* below : {"/root/in/net-abc123", "/root/in/net-abc123/new",
                            "/root/in/net-abc123/4-100", "/root/in/net-abc123/9-9/x"}) {
    const auto found = check(below);
    ASSERT_THAT(found, SizeIs(1)) << below;
    EXPECT_THAT(found[0].description, HasSubstr("has checkpoint 4-100"));
  }
  (void)services::RemoveTree("/tmp", dir);
}

TEST(PathPolicyTest, LinksInInitialWeightsAreFollowed) {
  const std::string dir = *services::MakePrivateDir("policy-test");
  const std::string theirs = dir + "/root/net-abc123/1-4";
  const std::string own = dir + "/root/own";
  ASSERT_TRUE(services::EnsureDir(theirs).ok());
  ASSERT_TRUE(services::EnsureDir(own + "/1-7").ok());
  for (const char* name : {"/manifest.json", "/shard-0.safetensors"}) {
    ASSERT_TRUE(services::WriteFileAtomically(theirs + name, "x").ok());
    ASSERT_TRUE(services::WriteFileAtomically(own + "/1-7" + name, "x").ok());
  }
  const auto policy = PathPolicy::Create({dir + "/root"}, {dir + "/root"});
  const auto check = [&](const std::string& path) {
    job::v1::JobSpec spec;
    spec.mutable_model()->set_initial_weights("file://" + path);
    std::vector<PathPolicy::Claim> claims;
    EXPECT_THAT(policy->Check(spec, &claims), IsEmpty());
    EXPECT_THAT(claims, SizeIs(1));
    return PathPolicy::CheckLinks(claims[0]);
  };
  for (const std::string& path : {theirs, own + "/1-7", own + "/1-7/manifest.json", own + "/1-9"}) {
    EXPECT_THAT(check(path).violations, IsEmpty()) << path;
    EXPECT_THAT(check(path).weights_at, IsEmpty()) << path;
  }
  // Links to the folder, to one above it, to a file outside of any checkpoint, and to one inside.
  ASSERT_EQ(::symlink("../net-abc123/1-4", (own + "/1-8").c_str()), 0);
  ASSERT_EQ(::symlink((dir + "/root/net-abc123").c_str(), (own + "/all").c_str()), 0);
  ASSERT_EQ(::symlink("1-8/shard-0.safetensors", (own + "/w.safetensors").c_str()), 0);
  EXPECT_THAT(check(own + "/1-8").weights_at, ElementsAre(theirs));
  EXPECT_THAT(check(own + "/1-8/manifest.json").weights_at, ElementsAre(theirs + "/manifest.json"));
  EXPECT_THAT(check(own + "/all/1-4").weights_at, ElementsAre(theirs));
  EXPECT_THAT(check(own + "/w.safetensors").weights_at,
              ElementsAre(theirs + "/shard-0.safetensors"));
  ASSERT_EQ(::symlink((theirs + "/shard-0.safetensors").c_str(),
                      (own + "/1-7/shard-1.safetensors").c_str()),
            0);
  for (const char* name : {"/1-7", "/1-7/manifest.json"}) {
    EXPECT_THAT(check(own + name).weights_at, ElementsAre(theirs + "/shard-0.safetensors")) << name;
  }
  // A link to a checkpoint that does not exist yet may become another person's.
  ASSERT_EQ(::symlink("../net-abc123/1-5", (own + "/1-5").c_str()), 0);
  ASSERT_THAT(check(own + "/1-5").violations, SizeIs(1));
  EXPECT_THAT(check(own + "/1-5").violations[0].description, HasSubstr("a link leads nowhere"));
  (void)services::RemoveTree("/tmp", dir);
}

}  // namespace
}  // namespace capstan::coordinator
