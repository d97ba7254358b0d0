// Several jobs on the same services: at the same time, one after the other, and cancelled. `capstan
// run` starts services for one job, so tests/e2e does not cover this.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "tests/integration/lenet_job.h"
#include "tests/support/services.h"

namespace capstan::tests {
namespace {

using common::v1::JOB_STATE_CANCELLED;
using common::v1::JOB_STATE_PENDING;
using common::v1::JOB_STATE_RUNNING;
using common::v1::JOB_STATE_SUCCEEDED;

constexpr absl::Duration kLimit = absl::Seconds(100);

// A job that runs until it is cancelled takes one of the two devices of each worker. Beside it, on
// the same workers and shards, a second job trains to the bits of a run in one process. A third
// needs both devices of both workers, waits, and gets them once the first is cancelled.
TEST(JobsTest, ShareWorkersAndShardsAndGiveTheirDevicesBack) {
  auto cluster = ServiceCluster::Start({.workers = 2, .devices_per_worker = 2, .shards = 2});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ServiceCluster& services = **cluster;

  const auto local = services.RunJob(LeNetSpec(1, 0), kLimit);
  ASSERT_TRUE(local.ok()) << local.status();
  ASSERT_EQ(local->state(), JOB_STATE_SUCCEEDED) << DescribeJob(*local);

  job::v1::JobSpec endless = LeNetSpec(2, 2);
  endless.mutable_training()->set_epochs(100000);
  endless.mutable_training()->set_seed(6);
  const auto endless_id = services.Submit(endless);
  ASSERT_TRUE(endless_id.ok()) << endless_id.status();
  const auto running = services.WaitFor(*endless_id, kLimit, [](const job::v1::Job& job) {
    return job.state() == JOB_STATE_RUNNING && job.progress().step() > 0;
  });
  ASSERT_TRUE(running.ok()) << running.status();

  const auto beside = services.RunJob(LeNetSpec(2, 2), kLimit);
  ASSERT_TRUE(beside.ok()) << beside.status();
  EXPECT_EQ(beside->state(), JOB_STATE_SUCCEEDED) << DescribeJob(*beside);
  EXPECT_EQ(beside->weights_sha256(), local->weights_sha256());
  const auto still = services.Get(*endless_id);
  ASSERT_TRUE(still.ok()) << still.status();
  EXPECT_EQ(still->state(), JOB_STATE_RUNNING) << DescribeJob(*still);

  job::v1::JobSpec wide = LeNetSpec(2, 2);
  wide.mutable_resources()->set_gpus_per_worker(2);
  const auto wide_id = services.Submit(wide);
  ASSERT_TRUE(wide_id.ok()) << wide_id.status();
  // The message says which job it waits for.
  const auto waiting = services.WaitFor(*wide_id, kLimit, [](const job::v1::Job& job) {
    return job.state() == JOB_STATE_PENDING && !job.message().empty();
  });
  ASSERT_TRUE(waiting.ok()) << waiting.status();

  ASSERT_EQ(services.Cancel(*endless_id), absl::OkStatus());
  const auto cancelled = services.WaitFor(*endless_id, kLimit);
  ASSERT_TRUE(cancelled.ok()) << cancelled.status();
  EXPECT_EQ(cancelled->state(), JOB_STATE_CANCELLED) << DescribeJob(*cancelled);
  const auto done = services.WaitFor(*wide_id, kLimit);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->state(), JOB_STATE_SUCCEEDED) << DescribeJob(*done);
  EXPECT_EQ(done->weights_sha256(), local->weights_sha256());
  EXPECT_EQ(done->samples_used(), kSteps * kBatch);
}

// Four batches of 16 samples in 2 lanes, summed before the one exchange of a step, are a batch of
// 64 in 8 lanes. 1003 = 15 x 64 + 43, so the last step of an epoch is smaller.
TEST(JobsTest, AccumulatedBatchesGiveTheBitsOfOneLargeBatch) {
  auto cluster = ServiceCluster::Start({.workers = 2, .shards = 2});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const auto ended = [&](job::v1::JobSpec spec) {
    spec.mutable_data()->set_train_samples(1003);
    const auto job = (*cluster)->RunJob(spec, kLimit);
    EXPECT_TRUE(job.ok()) << job.status();
    if (!job.ok()) return job::v1::Job();
    EXPECT_EQ(job->state(), JOB_STATE_SUCCEEDED) << DescribeJob(*job);
    EXPECT_EQ(job->samples_used(), 2 * 1003);
    EXPECT_EQ(job->resolved().total_steps(), 2 * 16);
    EXPECT_EQ(job->resolved().lanes(), 8);
    return *job;
  };
  const std::string whole = ended(LeNetSpec(1, 0)).weights_sha256();
  EXPECT_EQ(whole.size(), 64u);
  for (const auto& [workers, shards] : {std::pair(1, 0), {2, 2}}) {
    job::v1::JobSpec parts = LeNetSpec(workers, shards);
    parts.mutable_resources()->set_lanes(2);
    parts.mutable_training()->set_global_batch_size(16);
    parts.mutable_training()->set_accumulate_steps(4);
    EXPECT_EQ(ended(parts).weights_sha256(), whole) << workers << " workers";
  }
}

}  // namespace
}  // namespace capstan::tests
