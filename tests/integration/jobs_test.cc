// Several jobs on the same services: at the same time, one after the other, and cancelled. `capstan
// run` starts services for one job, so tests/e2e does not cover this.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

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

}  // namespace
}  // namespace capstan::tests
