// Equal weights over a bad network. Workers and shards exchange through a proxy that delays,
// repeats, reorders and loses whole messages, and the bits are those of a run in one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/lenet_job.h"
#include "tests/support/services.h"

namespace capstan::tests {
namespace {

using common::v1::JOB_STATE_SUCCEEDED;

constexpr absl::Duration kLimit = absl::Seconds(100);

struct Result {
  std::string weights_sha256;
  int64_t samples_used = 0;
  std::vector<double> losses;  // training and validation, per epoch
  ProxyCounters counters;
};

Result RunOn(const ClusterOptions& options) {
  auto cluster = ServiceCluster::Start(options);
  if (!cluster.ok()) {
    ADD_FAILURE() << cluster.status();
    return {};
  }
  const auto job = (*cluster)->RunJob(LeNetSpec(options.workers, options.shards), kLimit);
  Result result;
  result.counters = (*cluster)->proxy_counters();
  std::printf("seed %llu: %s\n", static_cast<unsigned long long>(options.seed),
              result.counters.ToString().c_str());
  if (!job.ok()) {
    ADD_FAILURE() << job.status();
    return result;
  }
  EXPECT_EQ(job->state(), JOB_STATE_SUCCEEDED) << DescribeJob(*job) << "\n"
                                               << (*cluster)->last_lines();
  EXPECT_EQ(job->progress().step(), kSteps);
  EXPECT_EQ(job->restarts(), 0);
  result.weights_sha256 = job->weights_sha256();
  result.samples_used = job->samples_used();
  for (const auto& epoch : job->epochs()) {
    result.losses.push_back(epoch.train_loss());
    result.losses.push_back(epoch.validation_loss());
  }
  return result;
}

// The undisturbed run that all others are compared with: one process without a shard.
const Result& Local() {
  static const Result local = RunOn({.workers = 1});
  return local;
}

void ExpectLikeLocal(const Result& result) {
  ASSERT_EQ(Local().weights_sha256.size(), 64u);
  ASSERT_EQ(Local().samples_used, kSteps * kBatch);
  ASSERT_EQ(Local().losses.size(), 4u);
  EXPECT_EQ(result.weights_sha256, Local().weights_sha256);
  EXPECT_EQ(result.samples_used, Local().samples_used);
  EXPECT_EQ(result.losses, Local().losses);  // bit for bit
  EXPECT_EQ(result.counters.undecodable, 0);
  EXPECT_EQ(result.counters.late_hellos, 0);
}

// CAPSTAN_FAULT_SEEDS=20 runs twenty other seeds, by hand.
std::vector<uint64_t> Seeds() {
  const char* const more = std::getenv("CAPSTAN_FAULT_SEEDS");
  if (more == nullptr) return {1, 20, 300};
  std::vector<uint64_t> seeds;
  for (int i = 0; i < std::atoi(more); ++i) seeds.push_back(static_cast<uint64_t>(1000 + 7 * i));
  return seeds;
}

TEST(ExchangeFaultsTest, AProxyWithoutFaultsChangesNothing) {
  const Result result = RunOn({.workers = 3, .shards = 2, .faults = ProxyFaults()});
  ExpectLikeLocal(result);
  EXPECT_EQ(result.counters.broken, 0);
  EXPECT_EQ(result.counters.corrupt_acks, 0);
  // Three ranks open data streams to both shards and control streams to the lead, and one link
  // connects the shards. No process had to open a stream again after it was answered. (Shards may
  // still refuse early streams, and end the open ones when the job has ended.)
  EXPECT_GE(result.counters.streams, 10);
  EXPECT_LE(result.counters.streams - result.counters.refused, 10);
}

class ExchangeFaultsSeedTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(ExchangeFaultsSeedTest, DelayedRepeatedReorderedAndBrokenGivesTheSameBits) {
  ClusterOptions options{.workers = 3, .shards = 2, .seed = GetParam()};
  options.faults =
      ProxyFaults{.max_delay = absl::Milliseconds(20), .repeat = 0.1, .messages_per_break = 150};
  const Result result = RunOn(options);
  ExpectLikeLocal(result);
  EXPECT_GT(result.counters.delayed, 500);
  EXPECT_GT(result.counters.repeated, 50);
  // The slower the senders are, the fewer messages wait at a time: 6 to 37 were seen.
  EXPECT_GE(result.counters.overtaken, 2);
  EXPECT_GE(result.counters.broken, 2);
  EXPECT_GT(result.counters.streams, 10);
  EXPECT_EQ(result.counters.corrupt_acks, 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ExchangeFaultsSeedTest, ::testing::ValuesIn(Seeds()));

// Damaged payloads are never added and never used: the shard answers CORRUPT and the worker sends
// the frame again, and the worker fetches damaged weights again.
TEST(ExchangeFaultsTest, FlippedPayloadBitsAreNeverAdded) {
  ClusterOptions options{.workers = 3, .shards = 2, .seed = 4000};
  options.faults = ProxyFaults{.flip = 0.05};
  const Result result = RunOn(options);
  ExpectLikeLocal(result);
  EXPECT_GT(result.counters.flipped_frames, 10);
  EXPECT_GT(result.counters.flipped_weights, 5);
  EXPECT_EQ(result.counters.corrupt_acks, result.counters.flipped_frames);
  EXPECT_GT(result.counters.streams, 10);  // weights are fetched by opening the stream again
}

// A flipped bit of a key, a seal, a part, a decision or an answer: the message is ignored, and its
// stream is opened again.
TEST(ExchangeFaultsTest, FlippedHeaderBitsCountForNothing) {
  ClusterOptions options{.workers = 3, .shards = 2, .seed = 5000};
  options.faults = ProxyFaults{.flip_header = 0.03};
  const Result result = RunOn(options);
  ExpectLikeLocal(result);
  EXPECT_GT(result.counters.flipped_headers, 10);
  EXPECT_EQ(result.counters.corrupt_acks, 0);
  EXPECT_GT(result.counters.streams, 10);
}

}  // namespace
}  // namespace capstan::tests
