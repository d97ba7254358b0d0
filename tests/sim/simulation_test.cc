// Whole jobs over the real cores, many seeds: equal bits whatever the network does and whoever
// dies, and every job ends once the faults do.
//
//   CAPSTAN_SIM_SEED=n    the first seed (1)
//   CAPSTAN_SIM_SEEDS=n   how many (600; ./run-tests --long: 5000)
//   CAPSTAN_SIM_SHRINK=n  runs that may be spent on making a failing seed small (200)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
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

// What went wrong, with the smallest plan that still shows it.
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
    sum.faults += result.faults;
    sum.takeovers += result.takeovers;
    sum.rollbacks += result.rollbacks;
    sum.manifests += result.manifests;
    sum.coordinator_restarts += result.coordinator_restarts;
    sum.orders += result.orders;
    sum.suspends += result.suspends;
    if (seed % 50 != 0) continue;
    EXPECT_EQ(RunWorld(plan).trace_hash, result.trace_hash) << "seed " << seed << " ran otherwise";
    ++hashed;
  }
  std::printf(
      "%lld seeds from %lld: %d faults, %d takeovers, %d rollbacks, %d manifests, %d "
      "coordinator restarts, %d orders, %d suspends; %d ran twice\n",
      static_cast<long long>(count), static_cast<long long>(first), sum.faults, sum.takeovers,
      sum.rollbacks, sum.manifests, sum.coordinator_restarts, sum.orders, sum.suspends, hashed);
  if (count >= 200) {  // a simulation without faults shows nothing
    EXPECT_GT(sum.faults, count);
    EXPECT_GT(sum.takeovers, count / 4);
    EXPECT_GE(sum.manifests, count);
    EXPECT_GT(sum.coordinator_restarts, count / 10);
    EXPECT_GT(sum.orders, count / 10);
    EXPECT_GT(sum.suspends, count / 20);
  }
}

// Seeds that have found a fault of the cores once.
TEST(SimulationTest, WhatWasFoundOnceStaysMended) {
  // A checkpoint was given up, the coordinator started again, and the end waited for its files.
  Plan plan = DrawPlan(22434);
  plan.orders.clear();  // there were none then
  plan.Remove(FaultClass::kLeadBreak);
  EXPECT_THAT(RunWorld(plan).violations, testing::IsEmpty());
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
