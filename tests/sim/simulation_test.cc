// Whole jobs over the real cores, for many seeds. The bits are equal whatever the network does and
// whichever process dies, and every job ends after the faults have ended.
//
//   CAPSTAN_SIM_SEED=n    the first seed (1)
//   CAPSTAN_SIM_SEEDS=n   how many (600; ./run-tests --long: 5000)
//   CAPSTAN_SIM_SHRINK=n  the most runs for making a failing seed small (200)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/version/version.h"
#include "tests/sim/plan.h"
#include "tests/sim/world.h"

namespace capstan::sim {
namespace {

int64_t Setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  int64_t value = otherwise;
  if (text != nullptr) {
    EXPECT_TRUE(absl::SimpleAtoi(text, &value)) << name;
  }
  return value;
}

// The least effects of each class in 100 seeds: about half of the usual number.
struct Floor {
  FaultClass what;
  int64_t per_100_seeds;
};
constexpr Floor kFloors[] = {
    {FaultClass::kSlow, 200},
    {FaultClass::kRepeat, 800},
    {FaultClass::kReorder, 450},
    {FaultClass::kCorrupt, 50},
    {FaultClass::kDiskFull, 15},
    {FaultClass::kSyncError, 11},
    {FaultClass::kPowerCut, 1},
    {FaultClass::kStreamBreak, 33},
    {FaultClass::kCut, 40},
    {FaultClass::kOneWayCut, 30},
    {FaultClass::kTaskCrash, 17},
    {FaultClass::kWorkerCrash, 22},
    {FaultClass::kShardCrash, 21},
    {FaultClass::kCoordinatorCrash, 17},
    {FaultClass::kTaskPause, 65},
    {FaultClass::kShardPause, 130},
    {FaultClass::kCoordinatorPause, 400},
    {FaultClass::kDamage, 4},
    {FaultClass::kLeadBreak, 30},
    {FaultClass::kSessionBreak, 22},
    {FaultClass::kLeave, 12},
    {FaultClass::kLocal, 95},
    {FaultClass::kElastic, 16},
    {FaultClass::kLossScale, 50},
    {FaultClass::kForget, 70},
    {FaultClass::kClipNorm, 140},
    {FaultClass::kTrust, 260},
};
static_assert(std::size(kFloors) == kFaultClasses);

// What went wrong, and the smallest plan that still shows it.
std::string Explain(const Plan& plan, const WorldResult& result) {
  std::string text = absl::StrCat("CAPSTAN_SIM_SEED=", plan.seed, " CAPSTAN_SIM_SEEDS=1, revision ",
                                  Revision(), "\n", absl::StrJoin(result.violations, "\n"));
  const Plan small = Shrink(
      plan, [](const Plan& smaller) { return !RunWorld(smaller).violations.empty(); },
      static_cast<int>(Setting("CAPSTAN_SIM_SHRINK", 200)));
  return absl::StrCat(text, "\nstill with\n", ToString(small), "\n",
                      absl::StrJoin(RunWorld(small).violations, "\n"));
}

TEST(SimulationTest, EveryJobEndsWithTheBitsOfThePlainSum) {
  const int64_t first = Setting("CAPSTAN_SIM_SEED", 1), count = Setting("CAPSTAN_SIM_SEEDS", 600);
  WorldResult sum;
  int hashed = 0;
  for (int64_t seed = first; seed < first + count; ++seed) {
    const Plan plan = DrawPlan(seed);
    const WorldResult result = RunWorld(plan);
    ASSERT_TRUE(result.violations.empty()) << Explain(plan, result);
    sum.effects.Add(result.effects);
    sum.takeovers += result.takeovers;
    sum.rollbacks += result.rollbacks;
    sum.manifests += result.manifests;
    sum.coordinator_restarts += result.coordinator_restarts;
    sum.orders += result.orders;
    sum.suspends += result.suspends;
    sum.joins += result.joins;
    sum.resumed += result.resumed;
    sum.forgotten_jobs += result.forgotten_jobs;
    sum.forgotten_nodes += result.forgotten_nodes;
    sum.reused_requests += result.reused_requests;
    if (seed % 50 != 0) continue;
    EXPECT_EQ(RunWorld(plan).trace_hash, result.trace_hash) << "seed " << seed << " ran otherwise";
    ++hashed;
  }
  std::printf(
      "%lld seeds from %lld: %d takeovers, %d rollbacks, %d manifests, %d coordinator restarts, "
      "%d orders, %d suspends, %d joins, %d sessions resumed, forgotten %d jobs and %d nodes, "
      "%d request ids used again; %d ran twice\n",
      static_cast<long long>(count), static_cast<long long>(first), sum.takeovers, sum.rollbacks,
      sum.manifests, sum.coordinator_restarts, sum.orders, sum.suspends, sum.joins, sum.resumed,
      sum.forgotten_jobs, sum.forgotten_nodes, sum.reused_requests, hashed);
  for (const Floor& floor : kFloors) {
    const int64_t seen = sum.effects.of(floor.what);
    std::printf("  %-18s %7lld\n", std::string(NameOf(floor.what)).c_str(),
                static_cast<long long>(seen));
    if (count < 200) continue;
    EXPECT_GE(100 * seen, floor.per_100_seeds * count) << NameOf(floor.what);
  }
  if (count >= 200) {  // a simulation without faults shows nothing
    EXPECT_GT(sum.takeovers, count / 4);
    EXPECT_GT(sum.rollbacks, count / 10);
    EXPECT_GE(sum.manifests, count);
    EXPECT_GT(sum.coordinator_restarts, count / 10);
    EXPECT_GT(sum.orders, count / 10);
    EXPECT_GT(sum.suspends, count / 20);
    EXPECT_GT(sum.joins, count / 3);
    EXPECT_GT(sum.resumed, count / 5);
    EXPECT_GT(sum.forgotten_jobs, count / 2);
    EXPECT_GT(sum.forgotten_nodes, count / 10);
    EXPECT_GT(sum.reused_requests, count / 3);
  }
}

// The weights are those of the sums of what was encoded and decoded.
TEST(SimulationTest, EveryCompressedJobHasTheRightWeights) {
  const int64_t first = Setting("CAPSTAN_SIM_SEED", 1);
  const int64_t count = Setting("CAPSTAN_SIM_SEEDS", 600) / 6;
  WorldResult sum;
  for (int64_t seed = first; seed < first + count; ++seed) {
    const Plan plan = CompressedPlan(seed);
    const WorldResult result = RunWorld(plan);
    ASSERT_TRUE(result.violations.empty()) << Explain(plan, result);
    sum.takeovers += result.takeovers;
    sum.rollbacks += result.rollbacks;
  }
  std::printf("%lld compressed seeds: %d takeovers, %d rollbacks\n", static_cast<long long>(count),
              sum.takeovers, sum.rollbacks);
  if (count < 100) return;
  EXPECT_GT(sum.takeovers, count / 4);
  EXPECT_GT(sum.rollbacks, count / 10);
}

// Error feedback: a residual that is lost, doubled or of another lane or step changes the bits. Losing
// a worker costs the steps since the last checkpoint.
TEST(SimulationTest, EveryJobWithErrorFeedbackHasTheBitsOfThePlainSum) {
  const int64_t first = Setting("CAPSTAN_SIM_SEED", 1);
  const int64_t count = Setting("CAPSTAN_SIM_SEEDS", 600) / 2;
  WorldResult sum;
  for (int64_t seed = first; seed < first + count; ++seed) {
    const Plan plan = ResidualsPlan(seed);
    const WorldResult result = RunWorld(plan);
    ASSERT_TRUE(result.violations.empty()) << Explain(plan, result);
    sum.rollbacks += result.rollbacks;
    sum.suspends += result.suspends;
    sum.joins += result.joins;
  }
  std::printf("%lld seeds with error feedback: %d rollbacks, %d suspends, %d joins\n",
              static_cast<long long>(count), sum.rollbacks, sum.suspends, sum.joins);
  if (count < 100) return;
  EXPECT_GT(sum.rollbacks, count / 2);
  EXPECT_GT(sum.suspends, count / 20);
  EXPECT_GT(sum.joins, count / 10);
}

// Workers update replicas: from sums, and from whole versions after faults.
TEST(SimulationTest, EveryJobWhoseWorkersUpdateHasTheBitsOfThePlainSum) {
  const int64_t first = Setting("CAPSTAN_SIM_SEED", 1);
  const int64_t count = Setting("CAPSTAN_SIM_SEEDS", 600) / 2;
  WorldResult sum;
  for (int64_t seed = first; seed < first + count; ++seed) {
    const Plan plan = ReplicaPlan(seed);
    const WorldResult result = RunWorld(plan);
    ASSERT_TRUE(result.violations.empty()) << Explain(plan, result);
    sum.takeovers += result.takeovers;
    sum.rollbacks += result.rollbacks;
    sum.suspends += result.suspends;
    sum.joins += result.joins;
  }
  std::printf(
      "%lld seeds whose workers update: %d takeovers, %d rollbacks, %d suspends, %d joins\n",
      static_cast<long long>(count), sum.takeovers, sum.rollbacks, sum.suspends, sum.joins);
  if (count < 100) return;
  EXPECT_GT(sum.takeovers, count / 4);
  EXPECT_GT(sum.rollbacks, count / 10);
  EXPECT_GT(sum.suspends, count / 20);
  EXPECT_GT(sum.joins, count / 3);
}

// A task behind a thin link reads held versions, which have no state, and builds on none of them.
TEST(SimulationTest, AThinLinkTakesWholeVersionsOfAReplica) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Plan plan = ThinLinkPlan(seed);
    plan.replicas = true;
    plan.toy.optimizer = Toy::Optimizer::kLamb;
    const WorldResult result = RunWorld(plan);
    EXPECT_THAT(result.violations, testing::IsEmpty()) << "seed " << seed;
    EXPECT_GE(result.late_versions, 3) << "seed " << seed;
  }
}

// Asynchronous jobs: there are no bits to compare, so weights count (counts.h).
TEST(SimulationTest, EveryAsynchronousJobAppliesEachContributionOnce) {
  const int64_t first = Setting("CAPSTAN_SIM_SEED", 1);
  const int64_t count = Setting("CAPSTAN_SIM_SEEDS", 600) / 2;
  WorldResult sum;
  int64_t bounded = 0, skips = 0, changed = 0;
  for (int64_t seed = first; seed < first + count; ++seed) {
    const Plan plan = AsynchronousPlan(seed);
    const WorldResult result = RunWorld(plan);
    ASSERT_TRUE(result.violations.empty()) << Explain(plan, result);
    sum.takeovers += result.takeovers;
    sum.rollbacks += result.rollbacks;
    sum.stale_steps += result.stale_steps;
    sum.suspends += result.suspends;
    sum.joins += result.joins;
    if (plan.max_staleness >= 0) ++bounded;
    for (const PlannedOrder& order : plan.orders) {
      if (order.what == training::Order::What::kMaxStaleness) ++changed;
    }
    if (plan.toy.nonfinite_step >= 0) ++skips;
    if (seed % 50 != 0) continue;
    EXPECT_EQ(RunWorld(plan).trace_hash, result.trace_hash) << "seed " << seed << " ran otherwise";
  }
  std::printf(
      "%lld asynchronous seeds: %d takeovers, %d rollbacks, %d suspends, %d joins, %lld steps on "
      "stale weights; staleness bounded in %lld, changed %lld times, a skip in %lld\n",
      static_cast<long long>(count), sum.takeovers, sum.rollbacks, sum.suspends, sum.joins,
      static_cast<long long>(sum.stale_steps), static_cast<long long>(bounded),
      static_cast<long long>(changed), static_cast<long long>(skips));
  if (count < 100) return;
  EXPECT_GT(sum.takeovers, count / 4);
  EXPECT_GT(sum.rollbacks, count / 10);
  EXPECT_GT(sum.suspends, count / 20);
  EXPECT_GT(sum.stale_steps, 5 * count);
  EXPECT_GT(bounded, count / 3);
  EXPECT_GT(changed, count / 10);
  EXPECT_GT(skips, count / 10);
}

// Effects are counted for the right class: without the class, there are none to count.
TEST(SimulationTest, AFaultThatIsSwitchedOffHasNoEffect) {
  for (const Floor& floor : kFloors) {
    int64_t with = 0;
    for (uint64_t seed = 1; seed <= 400 && with == 0; ++seed) {
      Plan plan = DrawPlan(seed);
      if (!plan.has(floor.what)) continue;
      with = RunWorld(plan).effects.of(floor.what);
      plan.Remove(floor.what);
      EXPECT_EQ(RunWorld(plan).effects.of(floor.what), 0)
          << NameOf(floor.what) << ", seed " << seed;
    }
    EXPECT_GT(with, 0) << NameOf(floor.what);
  }
}

// Seeds that once found a bug in the cores.
TEST(SimulationTest, WhatWasFoundOnceStaysMended) {
  // A checkpoint was given up, the coordinator restarted, and the end waited for the files.
  Plan plan = DrawPlan(22434);
  plan.orders.clear();  // the seed had none then
  for (const FaultClass what :
       {FaultClass::kLeadBreak, FaultClass::kSessionBreak, FaultClass::kLeave, FaultClass::kLocal,
        FaultClass::kElastic, FaultClass::kLossScale, FaultClass::kForget, FaultClass::kClipNorm,
        FaultClass::kTrust}) {
    plan.Remove(what);
  }
  EXPECT_THAT(RunWorld(plan).violations, testing::IsEmpty());
}

// The current version is saved before a shard leaves, and the next lineage begins from it.
TEST(SimulationTest, ShardsThatLeaveCostNoStepAndNoRestart) {
  int left = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Plan plan = LeavesPlan(seed);
    const WorldResult result = RunWorld(plan);
    ASSERT_THAT(result.violations, testing::IsEmpty()) << "seed " << seed;
    EXPECT_EQ(result.decided, plan.steps) << "seed " << seed;
    EXPECT_EQ(result.job.restarts(), 0) << "seed " << seed;
    left += result.left;
  }
  EXPECT_EQ(left, 3 * 20);
}

// The same with other faults, and with much or little time to leave: equal bits, and the job ends.
TEST(SimulationTest, ShardsThatLeaveAmongFaultsGiveTheSameBits) {
  int left = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Plan plan = DrawPlan(seed);
    plan.leaves = DrawLeaves(plan);
    const WorldResult result = RunWorld(plan);
    ASSERT_THAT(result.violations, testing::IsEmpty()) << "seed " << seed << "\n" << ToString(plan);
    left += result.left;
  }
  std::printf("%d shards left with empty hands\n", left);
  EXPECT_GT(left, 100);
}

// The version at hand is saved before shards move, and the next lineage begins from it.
TEST(SimulationTest, ShardsThatMoveCostNoStepAndNoRestart) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Plan plan = MovesPlan(seed);
    plan.replicas = seed % 4 == 0;
    const WorldResult result = RunWorld(plan);
    ASSERT_THAT(result.violations, testing::IsEmpty()) << "seed " << seed;
    EXPECT_EQ(result.decided, plan.steps) << "seed " << seed;
    EXPECT_EQ(result.job.restarts(), 0) << "seed " << seed;
    EXPECT_EQ(result.moves, 3) << "seed " << seed;
    EXPECT_EQ(result.job.shards_size(), 2) << "seed " << seed;
  }
}

// The same with other faults: equal bits, and the job ends.
TEST(SimulationTest, ShardsThatMoveAmongFaultsGiveTheSameBits) {
  int moves = 0, rollbacks = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Plan plan = seed % 3 == 0 ? AsynchronousPlan(seed) : DrawPlan(seed);
    if (plan.local) continue;
    plan.spare_shards = 1 + static_cast<int>(seed % 2);
    if (!plan.asynchronous) plan.steps += 20;
    plan.moves = DrawMoves(plan);
    const WorldResult result = RunWorld(plan);
    ASSERT_TRUE(result.violations.empty()) << Explain(plan, result);
    moves += result.moves;
    rollbacks += result.rollbacks;
  }
  std::printf("%d shards were moved, beside %d rollbacks\n", moves, rollbacks);
  EXPECT_GT(moves, 200);
}

// A worker that has lost its lanes to others takes many steps to receive a version. It finishes the
// version that it has begun, from all shards, and continues with a newer one.
TEST(SimulationTest, AWorkerBehindAThinLinkTakesWholeVersions) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const WorldResult result = RunWorld(ThinLinkPlan(seed));
    EXPECT_THAT(result.violations, testing::IsEmpty()) << "seed " << seed;
    EXPECT_GE(result.late_versions, 5) << "seed " << seed;
  }
}

// The same with other faults.
TEST(SimulationTest, ThinLinksAndFaultsGiveTheSameBits) {
  int late = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Plan plan = DrawPlan(seed);
    plan.Remove(FaultClass::kLocal);  // its weights do not come over a link
    plan.thin_worker = static_cast<int>(seed % static_cast<uint64_t>(plan.workers));
    plan.thin_bytes_per_second = 5e3 * static_cast<double>(1 + seed % 20);
    plan.thin_from = absl::Milliseconds(400 * static_cast<int64_t>(seed % 4));
    const WorldResult result = RunWorld(plan);
    ASSERT_THAT(result.violations, testing::IsEmpty()) << "seed " << seed;
    late += result.late_versions;
  }
  std::printf("%d versions were taken late\n", late);
  EXPECT_GT(late, 5);
}

// A message with a flipped bit anywhere before its payload has no effect.
TEST(SimulationTest, DamagedHeadersGiveTheSameBits) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Plan plan = DrawPlan(seed);
    plan.exchange.corrupt_headers = 0.02;
    ASSERT_THAT(RunWorld(plan).violations, testing::IsEmpty()) << "seed " << seed;
  }
}

TEST(SimulationTest, AnotherSeedRunsOtherwise) {
  Plan plan = DrawPlan(12345);
  const uint64_t hash = RunWorld(plan).trace_hash;
  plan.seed += 1;
  EXPECT_NE(RunWorld(plan).trace_hash, hash);
}

TEST(ShrinkTest, LeavesWhatIsNeededAlone) {
  Plan plan = DrawPlan(1);
  plan.power_cuts = true;
  plan.exchange.slow = 0.1;
  plan.faults.clear();
  for (int i = 0; i < 6; ++i) plan.faults.push_back({.what = FaultClass::kTaskPause, .target = i});
  plan.faults.push_back({.what = FaultClass::kCut, .target = 7});
  const auto fails = [](const Plan& candidate) {
    int needed = 0;
    for (const Fault& fault : candidate.faults) needed += fault.target == 2 ? 1 : 0;
    return needed == 1 && candidate.power_cuts;
  };
  const Plan small = Shrink(plan, fails, 1000);
  ASSERT_EQ(small.faults.size(), 1u);
  EXPECT_EQ(small.faults[0].target, 2);
  EXPECT_TRUE(small.power_cuts);
  EXPECT_FALSE(small.has(FaultClass::kSlow));
}

}  // namespace
}  // namespace capstan::sim
