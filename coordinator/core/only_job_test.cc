// A coordinator for one job, whose services end with it: `capstan run`, and `capstan run --resume`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/test_world.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_CANCELLED;
using common::v1::JOB_STATE_PENDING;
using common::v1::JOB_STATE_RUNNING;
using common::v1::JOB_STATE_STARTING;
using common::v1::JOB_STATE_SUSPENDED;
using ::testing::HasSubstr;

constexpr char kId[] = "toy-k3x9aa";

class OnlyJobTest : public ::testing::Test {
 protected:
  OnlyJobTest() : world_(std::make_unique<World>(Options())) {}

  static CoreOptions Options() {
    CoreOptions options;
    options.only_job = kId;
    options.expected_nodes = 2;
    return options;
  }
  World& w() { return *world_; }

  // w0 and s0, as each run has them.
  void StartServices() {
    worker_ = w().Worker("w0");
    store_ = w().Store("s0");
  }
  void LetItRun(int64_t lineage) {
    w().AnswerProbe(worker_);
    node::v1::ShardState& shard = w().Shard(store_, kId, 0);
    shard.set_lineage(lineage);
    shard.set_ready(true);
    shard.mutable_lead()->set_lineage(lineage);
    w().Beat(store_);
    node::v1::TaskState& task = w().Task(worker_, kId, 0);
    task.set_lineage(lineage);
    task.set_phase(node::v1::TASK_PHASE_RUNNING);
    w().Beat(worker_);
  }
  void SaveStep(int64_t step) {
    node::v1::ShardState& shard = w().Shard(store_, kId, 0);
    shard.mutable_lead()->set_step(step);
    node::v1::WrittenFiles* written = shard.mutable_files();
    written->set_lineage(1);
    written->set_step(step);
    common::v1::FileInfo* file = written->add_files();
    file->set_name("shard-0.safetensors");
    file->set_size_bytes(4);
    file->set_sha256(std::string(32, 'x'));
    w().Beat(store_);
    w().Do(ManifestWritten{kId, 1, step, absl::OkStatus()});
  }
  // All processes end at once, and new ones begin with what the journal has.
  void Restart() {
    auto next = std::make_unique<World>(Options());
    next->journal_ = w().journal_;
    ASSERT_TRUE(
        next->core_.Restore(next->journal_.state(), next->now_, absl::FromUnixSeconds(2000)).ok());
    world_ = std::move(next);
    StartServices();  // they may register before the folder of the job is read
    w().Do(Restored{});
  }
  void Resume() {
    job::v1::ResumeJobRequest request;
    request.set_job_id(kId);
    w().Do(Control{++w().calls_, request, w().caller_});
    ASSERT_TRUE(w().LastReply().status.ok()) << w().LastReply().status;
  }

  std::unique_ptr<World> world_;
  SessionId worker_ = 0;
  SessionId store_ = 0;
};

TEST_F(OnlyJobTest, ItHasTheIdThatItsFolderHasAndNoOtherJobIsTaken) {
  EXPECT_EQ(w().Submit(World::Spec(1, 1), "the-request"), kId);
  EXPECT_EQ(w().Submit(World::Spec(1, 1), "the-request"), kId);
  EXPECT_EQ(w().Submit(World::Spec(1, 1), "another"), "");
  EXPECT_TRUE(absl::IsFailedPrecondition(w().LastReply().status));
  EXPECT_THAT(std::string(w().LastReply().status.message()), HasSubstr(kId));
}

TEST_F(OnlyJobTest, OneThatWasInterruptedWaitsForAPersonAndCostsNoRestart) {
  StartServices();
  ASSERT_EQ(w().Submit(World::Spec(1, 1)), kId);
  LetItRun(1);
  ASSERT_EQ(w().Job(kId).state(), JOB_STATE_RUNNING);
  SaveStep(4);
  Restart();

  job::v1::Job job = w().Job(kId);
  EXPECT_EQ(job.state(), JOB_STATE_SUSPENDED);
  EXPECT_EQ(job.reason(), "Interrupted");
  EXPECT_EQ(job.message(), "its services ended before it did; it goes on from checkpoint 1-4");
  w().Pass(absl::Minutes(10), {worker_, store_});  // neither stalls nor recovers by itself
  EXPECT_EQ(w().Job(kId).state(), JOB_STATE_SUSPENDED);
  EXPECT_EQ(w().Job(kId).restarts(), 0);

  Resume();
  LetItRun(2);
  job = w().Job(kId);
  EXPECT_EQ(job.state(), JOB_STATE_RUNNING);
  EXPECT_EQ(job.lineage(), 2);
  EXPECT_EQ(job.restarts(), 0);
  const auto lineages = w().Take(store_, ConnectResponse::kStartLineage);
  ASSERT_FALSE(lineages.empty());
  EXPECT_THAT(lineages.back().start_lineage().base_manifest(), HasSubstr("/1-4"));
}

TEST_F(OnlyJobTest, OneThatHadNoLineageYetIsResumedLikeAnyOther) {
  StartServices();
  ASSERT_EQ(w().Submit(World::Spec(1, 1)), kId);
  ASSERT_EQ(w().Job(kId).state(), JOB_STATE_STARTING);  // its data are being looked at
  Restart();
  EXPECT_EQ(w().Job(kId).state(), JOB_STATE_SUSPENDED);
  EXPECT_THAT(w().Job(kId).message(), HasSubstr("the initial weights"));
  Resume();
  LetItRun(1);
  EXPECT_EQ(w().Job(kId).state(), JOB_STATE_RUNNING);
}

TEST_F(OnlyJobTest, OneThatWasCancelledIsRetried) {
  StartServices();
  ASSERT_EQ(w().Submit(World::Spec(1, 1)), kId);
  LetItRun(1);
  SaveStep(4);
  w().Cancel(kId);
  Restart();  // before its task had ended
  EXPECT_EQ(w().Job(kId).state(), JOB_STATE_CANCELLED);

  job::v1::RetryJobRequest request;
  request.set_job_id(kId);
  w().Do(Control{++w().calls_, request, w().caller_});
  ASSERT_TRUE(w().LastReply().status.ok()) << w().LastReply().status;
  EXPECT_THAT(std::get<job::v1::RetryJobResponse>(w().LastReply().response).from(),
              HasSubstr("/1-4"));
  w().Do(Tick{});
  LetItRun(2);
  EXPECT_EQ(w().Job(kId).state(), JOB_STATE_RUNNING);
}

TEST_F(OnlyJobTest, OneThatWaitsGoesOnByItself) {
  ASSERT_EQ(w().Submit(World::Spec(1, 1)), kId);
  ASSERT_EQ(w().Job(kId).state(), JOB_STATE_PENDING);
  Restart();
  EXPECT_EQ(w().Job(kId).state(), JOB_STATE_STARTING);
}

}  // namespace
}  // namespace capstan::coordinator::core
