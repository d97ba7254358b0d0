// Whole jobs over the real cores, fifty seeds: equal bits whatever the network does and whoever
// dies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/world.h"

namespace capstan::sim {
namespace {

using ::testing::IsEmpty;

// Swarm testing (Groce et al. 2012): each seed draws which kinds of faults it has at all.
WorldOptions DrawOptions(uint64_t seed) {
  Random random(seed * 7919 + 1);
  WorldOptions options;
  options.seed = seed;
  options.workers = static_cast<int>(1 + random.Below(5));
  options.shards = static_cast<int>(1 + random.Below(3));
  constexpr int kLanes[] = {3, 5, 8, 16};
  options.lanes = std::max(options.workers, kLanes[random.Below(4)]);
  options.steps = 6 + random.Below(8);
  if (random.Chance(0.5)) options.exchange.slow = 0.1;
  if (random.Chance(0.5)) options.exchange.repeat = 0.3;
  options.exchange.reorder = random.Chance(0.5);
  if (random.Chance(0.5)) options.stream_breaks = static_cast<int>(random.Below(6));
  if (random.Chance(0.5)) options.worker_kills = static_cast<int>(random.Below(3));
  if (random.Chance(0.4)) options.worker_cuts = static_cast<int>(random.Below(3));
  if (random.Chance(0.5)) options.pauses = static_cast<int>(random.Below(4));
  if (options.workers == 1)
    options.worker_cuts = 0;  // without anybody left the job ends WorkerLost
  if (random.Chance(0.3))
    options.toy = {random.Below(options.steps), static_cast<int32_t>(random.Below(options.lanes))};
  return options;
}

uint64_t FirstSeed() {
  const char* seed = std::getenv("CAPSTAN_SIM_SEED");
  uint64_t value = 1;
  if (seed != nullptr) {
    EXPECT_TRUE(absl::SimpleAtoi(seed, &value)) << "CAPSTAN_SIM_SEED";
  }
  return value;
}

TEST(SimulationTest, FiftySeedsEndWithTheBitsOfThePlainSum) {
  const char* count = std::getenv("CAPSTAN_SIM_SEEDS");
  int seeds = 50;
  if (count != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(count, &seeds));
  }
  int faults = 0, takeovers = 0, skipped = 0;
  for (uint64_t seed = FirstSeed(); seed < FirstSeed() + seeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("CAPSTAN_SIM_SEED=", seed, " CAPSTAN_SIM_SEEDS=1"));
    const WorldOptions options = DrawOptions(seed);
    const WorldResult result = RunWorld(options);
    EXPECT_THAT(result.violations, IsEmpty());
    EXPECT_EQ(result.job.state(), common::v1::JOB_STATE_SUCCEEDED)
        << result.job.reason() << ": " << result.job.message();
    EXPECT_EQ(result.job.progress().step(), options.steps);
    // Every sample of every step once: four whole batches and a small one in each epoch.
    int64_t samples = 0;
    const int64_t batch = 8 * options.lanes;
    for (int64_t step = 0; step < options.steps; ++step)
      samples += step % 5 == 4 ? std::max(1, options.lanes / 2) : batch;
    EXPECT_EQ(result.job.samples_used(), samples);
    faults += result.faults;
    takeovers += static_cast<int>(result.job.generation() - 1);
    skipped += options.toy.nonfinite_step >= 0 ? 1 : 0;
    if (HasFailure()) break;
  }
  std::printf(
      "%d seeds from %llu: %d faults, %d takeovers, %d jobs with a step that is not finite\n",
      seeds, static_cast<unsigned long long>(FirstSeed()), faults, takeovers, skipped);
  if (seeds >= 50) {
    EXPECT_GT(faults, 30);  // a simulation without faults shows nothing
    EXPECT_GT(takeovers, 5);
    EXPECT_GT(skipped, 3);
  }
}

TEST(SimulationTest, ASeedRunsTheSameWayTwice) {
  WorldOptions options = DrawOptions(12345);
  options.workers = 4;
  options.worker_kills = 1;
  options.stream_breaks = 3;
  EXPECT_EQ(RunWorld(options).trace_hash, RunWorld(options).trace_hash);
  WorldOptions other = options;
  other.seed += 1;
  EXPECT_NE(RunWorld(options).trace_hash, RunWorld(other).trace_hash);
}

}  // namespace
}  // namespace capstan::sim
