// The protocol keeps its invariants in every state of small worlds. Without any one rule it does
// not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "tests/model/checker.h"

namespace capstan::model {
namespace {

using ::testing::StartsWith;

struct Named {
  const char* name;
  World world;
};

// Searches a world and prints its size.
Verdict Explore(const Named& named, size_t max_states) {
  Verdict verdict = Search(named.world, max_states);
  std::printf("%-46s %8zu states %9zu transitions, depth %3zu, %5zu ends%s%s\n", named.name,
              verdict.states, verdict.transitions, verdict.depth, verdict.done_states,
              verdict.violation.empty() ? "" : ": ", verdict.violation.c_str());
  return verdict;
}

TEST(ModelTest, TheProtocolHasNoViolation) {
  const std::vector<Named> worlds = {
      {"a worker is suspected", {.suspicions = 1, .wipes = 1}},
      {"a worker dies", {.deaths = 1, .wipes = 1}},
      {"three workers, one dies, one is suspected",
       {.workers = 3, .steps = 1, .deaths = 1, .suspicions = 1}},
      {"four lanes, interleaved owners",
       {.lanes = 4, .steps = 1, .interleaved = true, .deaths = 1, .suspicions = 1}},
      {"a worker is cut off from one shard", {.cuts = 1, .wipes = 1}},
      {"a cut and a crash", {.lanes = 2, .cuts = 1, .crashes = 1, .wipes = 1}},
      {"a shard crashes", {.checkpoints = 2, .crashes = 1, .wipes = 1}},
      {"a shard crashes twice", {.checkpoints = 2, .crashes = 2}},
      {"a crash while a worker is suspected",
       {.lanes = 2, .checkpoints = 2, .suspicions = 1, .crashes = 1}},
      {"an order and a crash",
       {.lanes = 2,
        .workers = 1,
        .checkpoints = 2,
        .order = Order::kRate,
        .crashes = 1,
        .wipes = 1}},
      {"an order to stop and a crash",
       {.lanes = 2,
        .workers = 1,
        .steps = 3,
        .checkpoints = 2,
        .order = Order::kStop,
        .crashes = 1}},
      {"a shard is moved, two workers",
       {.lanes = 2, .steps = 3, .order = Order::kMove, .moved = 2, .wipes = 1}},
      {"the lead is moved, and a crash",
       {.lanes = 2,
        .workers = 1,
        .steps = 3,
        .checkpoints = 2,
        .order = Order::kMove,
        .moved = 1,
        .crashes = 1}},
      {"both shards are moved, a worker is suspected",
       {.lanes = 2, .order = Order::kMove, .moved = 3, .suspicions = 1, .wipes = 1}},
      {"replicas, a shard is moved",
       {.lanes = 2, .steps = 3, .order = Order::kMove, .moved = 2, .replicas = true}},
      {"a manifest is refused, a crash",
       {.lanes = 2, .workers = 1, .steps = 3, .checkpoints = 6, .crashes = 1, .refusals = 1}},
      {"a shard is replaced while it lives",
       {.lanes = 2, .workers = 1, .checkpoints = 2, .restarts = 1, .replace = true}},
      {"a step that is not finite", {.nonfinite_step = 0, .suspicions = 1}},
      {"not finite, and a crash",
       {.steps = 3, .checkpoints = 2, .nonfinite_step = 1, .crashes = 1, .wipes = 1}},
      {"evaluation, a worker dies", {.lanes = 2, .evaluated_version = 1, .deaths = 1, .wipes = 1}},
      {"evaluation, a crash", {.evaluated_version = 1, .crashes = 1, .wipes = 1}},
      {"replicas, a worker is suspected", {.replicas = true, .suspicions = 1, .wipes = 1}},
      {"replicas, a worker dies", {.replicas = true, .deaths = 1, .wipes = 1}},
      {"replicas, a worker is cut off from one shard",
       {.lanes = 2, .replicas = true, .cuts = 1, .wipes = 1}},
      {"replicas, a shard crashes", {.checkpoints = 2, .replicas = true, .crashes = 1, .wipes = 1}},
      {"replicas, a crash before the last step",
       {.lanes = 2,
        .workers = 1,
        .steps = 3,
        .checkpoints = 2,
        .replicas = true,
        .crashes = 1,
        .wipes = 1}},
      {"replicas, lanes are taken twice, three steps",
       {.lanes = 2, .steps = 3, .replicas = true, .suspicions = 2}},
      {"replicas, an order and a crash",
       {.lanes = 2,
        .workers = 1,
        .checkpoints = 2,
        .order = Order::kRate,
        .replicas = true,
        .crashes = 1}},
      {"replicas, not finite, and suspected",
       {.lanes = 2, .steps = 3, .nonfinite_step = 1, .replicas = true, .suspicions = 1}},
      {"replicas, evaluation, a worker dies",
       {.lanes = 2, .evaluated_version = 1, .replicas = true, .deaths = 1, .wipes = 1}},
      {"D0, replicas, a worker is suspected",
       {.steps = 1, .free_bits = true, .replicas = true, .suspicions = 1}},
      // D0: two copies of a lane differ, and each chunk may contain another one.
      {"D0, a worker is suspected", {.steps = 1, .free_bits = true, .suspicions = 1, .wipes = 1}},
      {"D0, a worker is suspected, two steps",
       {.lanes = 2, .free_bits = true, .suspicions = 1, .wipes = 1}},
      {"D0, a worker dies", {.steps = 1, .free_bits = true, .deaths = 1, .wipes = 1}},
      {"D0, a worker is cut off from one shard",
       {.lanes = 2, .steps = 1, .free_bits = true, .cuts = 1, .wipes = 1}},
      {"D0, a shard crashes",
       {.lanes = 2, .workers = 1, .checkpoints = 2, .free_bits = true, .crashes = 1, .wipes = 1}},
      {"D0, an order and a crash",
       {.lanes = 2,
        .workers = 1,
        .checkpoints = 2,
        .order = Order::kRate,
        .free_bits = true,
        .crashes = 1}},
      {"D0, not finite, and suspected",
       {.steps = 1, .nonfinite_step = 0, .free_bits = true, .suspicions = 1}},
  };
  // A sanitizer examines the checker, for which the beginning of each world is enough.
  const bool sanitized = std::getenv("CAPSTAN_SANITIZED") != nullptr;
  size_t states = 0;
  for (const Named& named : worlds) {
    SCOPED_TRACE(named.name);
    const Verdict verdict = Explore(named, sanitized ? 5000 : 10000000);
    EXPECT_EQ(verdict.violation, "") << absl::StrJoin(verdict.trace, "\n");
    if (!sanitized) {
      EXPECT_TRUE(verdict.complete);
      EXPECT_GT(verdict.done_states, 0u);
    }
    states += verdict.states;
  }
  std::printf("%zu states in all\n", states);
}

TEST(ModelTest, EveryRuleTakenAwayIsMissed) {
  struct Case {
    const char* name;
    const char* invariant;
    World world;
  };
  const World suspected = {.steps = 1, .suspicions = 1, .wipes = 1};
  const World dies = {.deaths = 1, .wipes = 1};
  const World crash = {.lanes = 2, .workers = 1, .checkpoints = 2, .crashes = 1};
  const World order = {.lanes = 2, .workers = 1, .order = Order::kRate, .crashes = 1};
  const World move = {.lanes = 2, .steps = 3, .order = Order::kMove, .moved = 2, .suspicions = 1};
  const World back = {.lanes = 2, .steps = 3, .replicas = true, .suspicions = 2};
  const World later = {
      .lanes = 2, .workers = 1, .steps = 3, .checkpoints = 2, .replicas = true, .crashes = 1};
  const auto with = [](World world, Bug bug) {
    world.bug = bug;
    return world;
  };
  const std::vector<Case> cases = {
      {"no dedupe", "I1", with(suspected, Bug::kNoDedupe)},
      {"no look for an ancestor", "I1", with(suspected, Bug::kNoAncestorCheck)},
      {"held descendants stay", "I1", with(suspected, Bug::kNoDiscard)},
      {"sum in the order of arrival", "I8", with(suspected, Bug::kArrivalOrder)},
      {"no fence at the shard", "I2", with(order, Bug::kNoFence)},
      {"a decision without its lineage", "DEC", with(crash, Bug::kDecisionOfAnyLineage)},
      {"a part without its lineage", "DEC", with(crash, Bug::kPartOfAnyLineage)},
      {"seals of another lineage", "I2", with(order, Bug::kSealOfAnyLineage)},
      {"seals survive a lineage", "I2", with(crash, Bug::kSealsSurviveLineage)},
      {"weights survive a lineage", "I6", with(crash, Bug::kWeightsSurviveLineage)},
      {"frames of s+1 before all of s+1", "AHEAD",
       with({.lanes = 2, .workers = 1}, Bug::kPartialVersion)},
      {"each shard decides for itself", "I7", with({.nonfinite_step = 0}, Bug::kDecisionPerShard)},
      {"the lead forgets an announced decision", "I6", with(dies, Bug::kLeadForgetsDecision)},
      {"issued again by missing seals only", "I6",
       with({.cuts = 1, .wipes = 1}, Bug::kReissueBySealsOnly)},
      {"a successor leaves sealed lanes out", "I6", with(dies, Bug::kSuccessorSkipsSealed)},
      {"what is not finite is refused", "I6", with({.nonfinite_step = 0}, Bug::kNonFiniteRefused)},
      {"a decision does not wait for an evaluation", "I6",
       with({.lanes = 2, .evaluated_version = 1, .deaths = 1, .wipes = 1},
            Bug::kEvaluationNotAwaited)},
      {"a shard without memory stays in its lineage", "DEC",
       with(crash, Bug::kSameLineageAfterCrash)},
      {"StartLineage twice", "DEC",
       with({.lanes = 2, .workers = 1, .restarts = 1}, Bug::kStartLineageTwice)},
      {"announced before durable", "I4", with(suspected, Bug::kAnnouncedBeforeDurable)},
      {"the base is the highest step", "I5",
       with({.lanes = 2, .workers = 1, .steps = 3, .checkpoints = 6, .crashes = 1, .refusals = 1},
            Bug::kManifestByHighestStep)},
      {"a manifest ignores lineages", "I5",
       with({.lanes = 2, .workers = 1, .checkpoints = 2, .free_bits = true, .crashes = 1},
            Bug::kManifestOfTwoLineages)},
      {"an older lineage commits", "I8", with(order, Bug::kCommitOfOldLineage)},
      {"done before the manifest", "I6",
       with({.lanes = 2, .workers = 1, .steps = 1, .crashes = 1}, Bug::kDoneBeforeManifest)},
      {"an order at another step", "I8", with(order, Bug::kOrderAtAnotherStep)},
      {"an order's report of an older lineage", "I8", with(order, Bug::kOrderReportOfOldLineage)},
      {"a move before the version is saved", "I11", with(move, Bug::kMovedBeforeSaved)},
      {"a move with the lead's file alone", "I8", with(move, Bug::kMovedWithOneFile)},
      {"weights survive a move", "I6", with(move, Bug::kWeightsSurviveLineage)},
      {"a sum on any version", "I10", with(back, Bug::kSumOnAnyVersion)},
      {"a sum is applied twice", "I10", with(back, Bug::kSumTwice)},
      {"a sum whose room has the next step's", "I10", with(back, Bug::kSumOfReusedRoom)},
      {"a version without the optimizer's state", "I10", with(later, Bug::kWholeWithoutState)},
      {"whole versions only at the start", "I6",
       with({.lanes = 2, .steps = 3, .replicas = true, .suspicions = 2, .wipes = 1},
            Bug::kSumsAlone)},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    const Verdict verdict = Explore({one.name, one.world}, 2000000);
    EXPECT_NE(verdict.violation, "");
    EXPECT_THAT(verdict.violation, StartsWith(one.invariant)) << absl::StrJoin(verdict.trace, "\n");
  }
}

}  // namespace
}  // namespace capstan::model
