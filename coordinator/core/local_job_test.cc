// A job whose task is its own shard and lead: what it is told when it begins again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/test_recovery.h"

namespace capstan::coordinator::core {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class LocalJobTest : public RecoveryTest {
 protected:
  void Begin(const job::v1::JobSpec& spec = Spec(1, 0)) {
    workers_ = {Worker("w0")};
    id_ = Submit(spec);
    Follow();
    ASSERT_EQ(Job(id_).state(), common::v1::JOB_STATE_RUNNING);
  }
  node::v1::TaskState& Its() { return Task(workers_[0], id_, rank_); }
  void At(int64_t step) {
    Its().mutable_lead()->set_lineage(Lineage());
    Its().mutable_lead()->set_step(step);
    Beat(workers_[0]);
  }
  // The task has written a version, and its manifest is committed.
  void SaveIt(int64_t step, const std::vector<int64_t>& orders = {}) {
    const size_t before = manifests_.size();
    At(step);
    node::v1::WrittenFiles& files = *Its().mutable_files();
    files.set_lineage(Lineage());
    files.set_step(step);
    common::v1::FileInfo* file = files.add_files();
    file->set_name("shard-0.safetensors");
    file->set_size_bytes(4);
    file->set_sha256(std::string(32, 'x'));
    node::v1::LeadSnapshot snapshot;
    snapshot.set_step(step);
    snapshot.set_samples_used(16 * step);
    for (const int64_t order : orders) snapshot.add_applied_orders()->set_id(order);
    files.set_lead_snapshot(snapshot.SerializeAsString());
    Beat(workers_[0]);
    ASSERT_THAT(manifests_, SizeIs(before + 1));
    EXPECT_EQ(manifests_.back().lineage, Lineage());
    EXPECT_EQ(manifests_.back().step, step);
    Written();
    Pass(absl::Milliseconds(600), All());  // it may have been told of another one just now
    const auto taken = Take(workers_[0], ConnectResponse::kFilesTaken);
    ASSERT_THAT(taken, Not(IsEmpty()));
    EXPECT_EQ(taken.back().files_taken().step(), step);
    Its().clear_files();
  }
  // Its process dies, with a reason or without; what its successor is told.
  node::v1::StartTask Dies(const std::string& reason = "") {
    Its().set_phase(node::v1::TASK_PHASE_FAILED);
    Its().set_exit_code(reason.empty() ? -9 : 1);
    Its().set_reason(reason);
    Beat(workers_[0]);
    EXPECT_EQ(Job(id_).state(), common::v1::JOB_STATE_PENDING);
    Forget(workers_[0]);
    Pass(absl::Seconds(5), All());
    AnswerProbe(workers_[0]);
    const auto starts = Take(workers_[0], ConnectResponse::kStartTask);
    EXPECT_THAT(starts, SizeIs(1));
    if (starts.empty()) return {};
    const node::v1::StartTask start = starts[0].start_task();
    rank_ = start.rank();
    Its().set_lineage(start.view().lineage());
    Its().set_generation(start.view().generation());
    Its().set_phase(node::v1::TASK_PHASE_RUNNING);
    Beat(workers_[0]);
    return start;
  }
  std::string Folder(const std::string& checkpoint) {
    return absl::StrCat("/out/", id_, "/", checkpoint);
  }

  int rank_ = 0;
};

TEST_F(LocalJobTest, BeginsAgainFromItsManifestWithTheOrdersThatItLacks) {
  Begin();
  auto update = For<job::v1::UpdateJobRequest>();
  update.set_learning_rate(0.25);
  Ask(update);
  update.set_learning_rate(0.125);
  Ask(update);
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kGiveOrders), Not(IsEmpty()));
  for (const int64_t order : {1, 2}) {  // at steps 2 and 5
    Its().mutable_lead()->add_applied_order_ids(order);
    Its().mutable_lead()->add_applied_order_steps(3 * order - 1);
    if (order == 1) SaveIt(4, {1});
  }
  At(6);

  const node::v1::StartTask start = Dies();
  EXPECT_EQ(start.view().lineage(), 2);
  EXPECT_EQ(start.base_manifest(), Folder("1-4"));
  ASSERT_EQ(start.orders_size(), 1);  // the other one is in the manifest
  EXPECT_EQ(start.orders(0).id(), 2);
  EXPECT_EQ(start.orders(0).step(), 5);
  EXPECT_EQ(start.orders(0).learning_rate(), 0.125);
  EXPECT_EQ(Job(id_).samples_used(), 64);
  EXPECT_EQ(Job(id_).progress().step(), 4);
  EXPECT_EQ(Job(id_).restarts(), 1);

  // Files of the lineage before are none of this one; its own become checkpoints.
  node::v1::WrittenFiles& old = *Its().mutable_files();
  old.set_lineage(1);
  old.set_step(6);
  old.add_files()->set_name("shard-0.safetensors");
  Beat(workers_[0]);
  EXPECT_THAT(manifests_, SizeIs(1));
  Its().clear_files();
  SaveIt(8, {1, 2});
  EXPECT_EQ(Job(id_).checkpoint_uri(), absl::StrCat("file://", Folder("2-8")));
}

// Its checkpoints lie in a folder like all others: what is not kept is swept from it.
TEST_F(LocalJobTest, OnlyTheNewestOfItsCheckpointsAreKept) {
  job::v1::JobSpec spec = Spec(1, 0);
  spec.mutable_checkpoint()->set_keep_latest(2);
  Begin(spec);
  for (const int64_t step : {2, 4, 6}) SaveIt(step);
  std::vector<std::string> kept;
  const job::v1::Job job = Job(id_);
  for (const auto& saved : job.checkpoints()) kept.push_back(saved.id());
  EXPECT_THAT(kept, ElementsAre("1-6", "1-4"));
  ASSERT_THAT(sweeps_, SizeIs(3));
  EXPECT_THAT(sweeps_.back().keep, ElementsAre("1-4", "1-6"));
  EXPECT_EQ(sweeps_.back().storage_path, absl::StrCat("/out/", id_));
}

TEST_F(LocalJobTest, ADamagedBaseIsRefusedAndTheOneBeforeItTaken) {
  Begin();
  SaveIt(2);
  SaveIt(4);
  EXPECT_EQ(Dies().base_manifest(), Folder("1-4"));
  EXPECT_EQ(Dies("CheckpointCorrupt").base_manifest(), Folder("1-2"));
  EXPECT_THAT(EventTypes(id_), Contains("CheckpointRefused"));
  EXPECT_EQ(Job(id_).restarts(), 1);  // the first one, which no file was to blame for

  Its().set_phase(node::v1::TASK_PHASE_FAILED);
  Its().set_exit_code(1);
  Its().set_reason("CheckpointCorrupt");
  Beat(workers_[0]);
  EXPECT_EQ(Job(id_).state(), common::v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job(id_).reason(), "CheckpointCorrupt");
}

// A person who resumes it does not want to wait for the rest of a back-off.
TEST_F(LocalJobTest, ResumedOrRetriedItBeginsAtOnce) {
  job::v1::JobSpec spec = Spec(1, 0);
  spec.mutable_recovery()->set_backoff_initial_seconds(60);
  spec.mutable_recovery()->set_backoff_max_seconds(60);
  Begin(spec);
  for (const bool retried : {false, true}) {
    Its().set_phase(node::v1::TASK_PHASE_FAILED);
    Its().set_exit_code(-9);
    Beat(workers_[0]);
    PassAndFollow(absl::Seconds(2));
    ASSERT_EQ(Job(id_).reason(), "BackOff");
    if (retried) {
      Cancel(id_);
      ASSERT_EQ(Job(id_).state(), common::v1::JOB_STATE_CANCELLED);
      Ask(For<job::v1::RetryJobRequest>());
    } else {
      Ask(For<job::v1::SuspendJobRequest>());
      ASSERT_EQ(Job(id_).state(), common::v1::JOB_STATE_SUSPENDED);
      Ask(For<job::v1::ResumeJobRequest>());
    }
    ASSERT_TRUE(LastReply().status.ok()) << LastReply().status;
    EXPECT_EQ(Job(id_).state(), common::v1::JOB_STATE_STARTING) << retried;
    PassAndFollow(absl::Seconds(1));
    ASSERT_EQ(Job(id_).state(), common::v1::JOB_STATE_RUNNING) << retried;
  }
}

}  // namespace
}  // namespace capstan::coordinator::core
