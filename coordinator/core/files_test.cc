// Which member may write and read files of a job over gRPC: GrantFiles.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/core.h"
#include "coordinator/core/test_recovery.h"

namespace capstan::coordinator::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FilesTest : public RecoveryTest {
 protected:
  FileHolder ShardOf(int index) const {
    const auto& shard = core_.Peek(id_)->shards()[static_cast<size_t>(index)];
    return {.shard = true, .index = index, .incarnation = shard.incarnation};
  }
  FileHolder TaskOf(int rank) const {
    const auto& task = core_.Peek(id_)->tasks()[static_cast<size_t>(rank)];
    return {.shard = false, .index = rank, .incarnation = task.incarnation};
  }
  absl::StatusCode Refusal(const FileHolder& holder) const {
    return core_.GrantFiles(id_, holder).status().code();
  }
};

TEST_F(FilesTest, AShardWritesItsOwnFileAndTheFirstOneTheLog) {
  Running(2, 2);
  const auto first = core_.GrantFiles(id_, ShardOf(0));
  const auto second = core_.GrantFiles(id_, ShardOf(1));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_THAT(first->may_write, ElementsAre("shard-0.safetensors"));
  EXPECT_TRUE(first->may_log);
  EXPECT_THAT(second->may_write, ElementsAre("shard-1.safetensors"));
  EXPECT_FALSE(second->may_log);
  EXPECT_EQ(first->lineage, 1);
  EXPECT_EQ(first->total_steps, 10);
  EXPECT_EQ(first->storage_path, Job(id_).resolved().storage_path());
}

TEST_F(FilesTest, TheOwnerOfLaneZeroWritesTheWeights) {
  Running(2, 1);
  const int owner = Job(id_).resolved().lanes() > 0 ? core_.Peek(id_)->view().lane_owners(0) : -1;
  ASSERT_GE(owner, 0);
  EXPECT_THAT(core_.GrantFiles(id_, TaskOf(owner))->may_write, ElementsAre("weights.safetensors"));
  EXPECT_THAT(core_.GrantFiles(id_, TaskOf(1 - owner))->may_write, IsEmpty());
  EXPECT_FALSE(core_.GrantFiles(id_, TaskOf(owner))->may_log);
}

TEST_F(FilesTest, ATaskThatIsItsOwnStoreWritesAll) {
  Running(1, 0);
  const auto grant = core_.GrantFiles(id_, TaskOf(0));
  ASSERT_TRUE(grant.ok()) << grant.status();
  EXPECT_THAT(grant->may_write, ElementsAre("shard-0.safetensors", "weights.safetensors"));
  EXPECT_TRUE(grant->may_log);
}

TEST_F(FilesTest, OnlyProcessesOfTheViewAreLetIn) {
  Running(2, 1);
  FileHolder other = ShardOf(0);
  ++other.incarnation;
  EXPECT_EQ(Refusal(other), absl::StatusCode::kUnauthenticated);
  other = ShardOf(0);
  other.index = 1;
  EXPECT_EQ(Refusal(other), absl::StatusCode::kUnauthenticated);
  other = TaskOf(0);
  other.shard = true;
  EXPECT_EQ(Refusal(other), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(core_.GrantFiles("nobody-1", ShardOf(0)).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(FilesTest, AShardThatWasReplacedWritesNothingAnyMore) {
  Running(2, 1);
  Save(2);
  const FileHolder old = ShardOf(0);
  ASSERT_TRUE(core_.GrantFiles(id_, old).ok());
  EXPECT_EQ(core_.GrantFiles(id_, old)->settled_step, 2);
  Restart(0);
  EXPECT_EQ(Refusal(old), absl::StatusCode::kUnauthenticated);
  PassAndFollow(absl::Seconds(10));
  ASSERT_EQ(Lineage(), 2);
  EXPECT_EQ(Refusal(old), absl::StatusCode::kUnauthenticated);
  ASSERT_TRUE(core_.GrantFiles(id_, ShardOf(0)).ok());
  EXPECT_EQ(core_.GrantFiles(id_, ShardOf(0))->lineage, 2);
}

TEST_F(FilesTest, AfterTheEndTheLogAloneIsTaken) {
  Running(2, 1);
  const FileHolder shard = ShardOf(0), task = TaskOf(0);
  Cancel(id_);
  PassAndFollow(absl::Seconds(2));
  ASSERT_EQ(Job(id_).state(), common::v1::JOB_STATE_CANCELLED);
  const auto grant = core_.GrantFiles(id_, shard);
  ASSERT_TRUE(grant.ok()) << grant.status();
  EXPECT_TRUE(grant->may_log);
  EXPECT_THAT(grant->may_write, IsEmpty());
  EXPECT_EQ(Refusal(task), absl::StatusCode::kUnauthenticated);
}

CoreOptions WithKeys(const std::string& secret) {
  CoreOptions options;
  options.files_key = [secret](const std::string& job_id, const FileHolder& holder) {
    return absl::StrCat(secret, "/", job_id, "/", holder.shard ? "shard" : "task", holder.index);
  };
  return options;
}

class KeysTest : public RecoveryTest {
 protected:
  KeysTest() : RecoveryTest(WithKeys("first")) {}
};

// The secret was lost with its file: what runs would save nothing any more.
TEST_F(KeysTest, AfterAStartEverybodyIsSentHisKeyOnce) {
  Running(2, 2);
  Pass(absl::Seconds(5), All());
  for (const SessionId session : All()) {  // they have them from their start
    EXPECT_THAT(Take(session, ConnectResponse::kViewChange), IsEmpty());
  }
  World next(WithKeys("second"));
  next.journal_ = journal_;
  ASSERT_TRUE(next.core_.Restore(next.journal_.state(), next.now_, absl::UnixEpoch()).ok());
  next.Do(Restored{});
  std::vector<SessionId> back;
  for (const char* name : {"w0", "w1", "s0", "s1"}) {
    const Node& node = *next.core_.nodes().Find(name);
    back.push_back(next.Connect(name, node.reg().role(), node.incarnation()));
    next.beats_[back.back()] = beats_[All()[back.size() - 1]];
    for (auto& shard : *next.beats_[back.back()].mutable_heartbeat()->mutable_shards()) {
      shard.set_generation(1);
    }
    next.Beat(back.back());
  }
  next.Pass(absl::Seconds(5), back);
  const char* const holders[] = {"task0", "task1", "shard0", "shard1"};
  for (size_t i = 0; i < back.size(); ++i) {
    const auto got = next.Take(back[i], ConnectResponse::kViewChange);
    ASSERT_EQ(got.size(), 1u) << i;
    EXPECT_EQ(got[0].view_change().files_key(), absl::StrCat("second/", id_, "/", holders[i]));
    EXPECT_EQ(got[0].view_change().view().generation(), 1);
  }
}

}  // namespace
}  // namespace capstan::coordinator::core
