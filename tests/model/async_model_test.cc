// The asynchronous rules keep their invariants in every state of small worlds. Without any one rule
// they do not. CAPSTAN_LARGE_WORLDS=1 adds worlds that take minutes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "tests/model/async_protocol.h"

namespace capstan::model {
namespace {

using ::testing::StartsWith;

struct NamedAsync {
  const char* name;
  AsyncWorld world;
};

// Searches a world and prints its size.
Verdict ExploreAsync(const NamedAsync& named, size_t max_states) {
  Verdict verdict = SearchAsync(named.world, max_states);
  std::printf("%-46s %8zu states %9zu transitions, depth %3zu, %5zu ends%s%s\n", named.name,
              verdict.states, verdict.transitions, verdict.depth, verdict.done_states,
              verdict.violation.empty() ? "" : ": ", verdict.violation.c_str());
  return verdict;
}

void ExpectNoViolation(const std::vector<NamedAsync>& worlds) {
  // A sanitizer examines the model, for which the beginning of each world is enough.
  const bool sanitized = std::getenv("CAPSTAN_SANITIZED") != nullptr;
  size_t states = 0;
  for (const NamedAsync& named : worlds) {
    SCOPED_TRACE(named.name);
    const Verdict verdict = ExploreAsync(named, sanitized ? 2000 : 10000000);
    EXPECT_EQ(verdict.violation, "") << absl::StrJoin(verdict.trace, "\n");
    if (!sanitized) {
      EXPECT_TRUE(verdict.complete);
      EXPECT_GT(verdict.done_states, 0u);
    }
    states += verdict.states;
  }
  std::printf("%zu states in all\n", states);
}

TEST(AsyncModelTest, TheRulesHaveNoViolation) {
  std::vector<NamedAsync> worlds = {
      {"three lanes, no fault", {.lanes = 3}},
      {"a worker dies", {.deaths = 1}},
      {"not finite, a worker dies", {.skip = true, .deaths = 1}},
      {"three lanes, three workers, one dies", {.lanes = 3, .workers = 3, .steps = 1, .deaths = 1}},
      {"three lanes, a worker is suspected", {.lanes = 3, .chunks = 1, .suspicions = 1}},
      {"three lanes, a stream breaks", {.lanes = 3, .breaks = 1}},
      {"a stream breaks, a worker is suspected", {.steps = 1, .suspicions = 1, .breaks = 1}},
      {"a stream breaks, a worker dies", {.deaths = 1, .breaks = 1}},
      {"a shard crashes", {.checkpoints = 2, .crashes = 1}},
      {"a shard crashes, a worker dies", {.deaths = 1, .crashes = 1}},
      {"late answers, a worker dies", {.late_answers = true, .deaths = 1}},
  };
  if (std::getenv("CAPSTAN_LARGE_WORLDS") != nullptr) {
    worlds.push_back({"large: three lanes, a worker dies", {.lanes = 3, .deaths = 1}});
    worlds.push_back({"large: three workers, two die", {.workers = 3, .deaths = 2}});
    worlds.push_back(
        {"large: a shard crashes twice", {.workers = 1, .checkpoints = 2, .crashes = 2}});
  }
  ExpectNoViolation(worlds);
}

TEST(AsyncModelTest, BoundedStalenessHasNoViolation) {
  std::vector<NamedAsync> worlds = {
      {"k = 0, three lanes, no fault", {.lanes = 3, .k = 0}},
      {"k = 1, three lanes, no fault", {.lanes = 3, .k = 1}},
      {"k = 0, three lanes, a worker dies", {.lanes = 3, .k = 0, .deaths = 1}},
      {"k = 0, three chunks, a worker dies", {.chunks = 3, .k = 0, .deaths = 1}},
      {"k = 1, three steps, a worker dies", {.steps = 3, .k = 1, .deaths = 1}},
      {"k = 0, a worker is suspected", {.k = 0, .suspicions = 1}},
      {"k = 0, a spare worker takes one lane",
       {.spare = true, .steps = 3, .chunks = 1, .k = 0, .suspicions = 1}},
      {"k = 0, three lanes, a stream breaks", {.lanes = 3, .k = 0, .breaks = 1}},
      {"k = 0, a stream breaks, a worker dies", {.k = 0, .deaths = 1, .breaks = 1}},
      {"k = 0, a shard crashes", {.k = 0, .checkpoints = 2, .crashes = 1}},
      {"k = 0, three lanes, a shard crashes",
       {.lanes = 3, .chunks = 1, .k = 0, .checkpoints = 2, .crashes = 1}},
      {"k = 0, a shard crashes, a worker dies", {.k = 0, .deaths = 1, .crashes = 1}},
      {"k = 0, late answers, three lanes", {.lanes = 3, .k = 0, .late_answers = true}},
      {"k = 0, late answers, a worker dies", {.k = 0, .late_answers = true, .deaths = 1}},
      {"k = 0, late answers, a stream breaks", {.k = 0, .late_answers = true, .breaks = 1}},
  };
  if (std::getenv("CAPSTAN_LARGE_WORLDS") != nullptr) {
    worlds.push_back({"large: k = 0, a spare worker, two chunks",
                      {.spare = true, .steps = 3, .k = 0, .suspicions = 1}});
    worlds.push_back(
        {"large: k = 1, three lanes, a shard crashes",
         {.lanes = 3, .workers = 1, .chunks = 1, .k = 1, .checkpoints = 2, .crashes = 1}});
    worlds.push_back({"large: k = 1, late answers, a stream breaks",
                      {.k = 1, .late_answers = true, .breaks = 1}});
    worlds.push_back(
        {"large: k = 1, three lanes, a worker dies", {.lanes = 3, .k = 1, .deaths = 1}});
  }
  ExpectNoViolation(worlds);
}

TEST(AsyncModelTest, EveryRuleTakenAwayIsMissed) {
  struct Case {
    const char* name;
    const char* invariant;
    AsyncWorld world;
  };
  const AsyncWorld one = {.lanes = 1, .workers = 1};
  const AsyncWorld dies = {.lanes = 1, .deaths = 1};
  const AsyncWorld breaks = {.lanes = 1, .workers = 1, .breaks = 1};
  const AsyncWorld crash = {.lanes = 1, .workers = 1, .checkpoints = 2, .crashes = 1};
  const AsyncWorld suspected = {.steps = 1, .suspicions = 1};
  const AsyncWorld bounded = {.k = 0};
  const AsyncWorld bounded_breaks = {.k = 0, .breaks = 1};
  const AsyncWorld spare = {.spare = true, .steps = 3, .chunks = 1, .k = 0, .suspicions = 1};
  const auto with = [](AsyncWorld world, AsyncBug bug) {
    world.bug = bug;
    return world;
  };
  const std::vector<Case> cases = {
      {"no dedupe", "A1", with(suspected, AsyncBug::kNoDedupe)},
      {"the key has the worker", "A1", with(suspected, AsyncBug::kKeyWithWorker)},
      {"marks per shard", "END",
       with({.lanes = 1, .workers = 1, .chunks = 3}, AsyncBug::kMarksPerShard)},
      {"what is past is not answered", "END", with(breaks, AsyncBug::kPastNotAnswered)},
      {"the next step after any answer", "A2", with(one, AsyncBug::kNextAfterAnyAnswer)},
      {"a successor begins at the highest mark", "A2", with(dies, AsyncBug::kResumeHighest)},
      {"the highest mark, after a checkpoint", "A2", with(crash, AsyncBug::kResumeHighest)},
      {"a successor ignores the seal", "A2", with(dies, AsyncBug::kResumeIgnoresSeal)},
      {"a successor begins at the seal", "A2", with(dies, AsyncBug::kResumeBySealOnly)},
      {"the seal, after a checkpoint", "A2", with(crash, AsyncBug::kResumeBySealOnly)},
      {"a new stream sends nothing again", "END", with(breaks, AsyncBug::kNoResend)},
      {"no fence at the shard", "A4", with(crash, AsyncBug::kNoFence)},
      {"taken over by missing seals only", "END", with({.deaths = 1}, AsyncBug::kTakeoverBySeals)},
      {"marks survive a lineage", "A2", with(crash, AsyncBug::kMarksSurviveLineage)},
      {"marks are not restored", "A1", with(crash, AsyncBug::kMarksNotRestored)},
      {"a manifest ignores lineages", "A5", with(crash, AsyncBug::kManifestOfAnyLineage)},
      {"marks after weights", "A5", with(crash, AsyncBug::kMarksAfterWeights)},
      {"the last checkpoint by seals only", "A5", with(one, AsyncBug::kLastBySeals)},
      {"a skip raises no mark", "END",
       with({.lanes = 1, .workers = 1, .skip = true}, AsyncBug::kSkipRaisesNoMark)},
      {"an answer is composed when it is parked", "A7",
       with(bounded, AsyncBug::kComposedWhenParked)},
      {"the gate is the seals' clock", "K", with(bounded_breaks, AsyncBug::kGateBySeals)},
      {"the clock is per worker", "K", with({.lanes = 3, .k = 0}, AsyncBug::kClockPerWorker)},
      {"an answer is dropped, not parked", "END", with(bounded, AsyncBug::kParkedIsDropped)},
      {"an answer is parked too long", "END", with(bounded, AsyncBug::kParkedTooLong)},
      {"a staleness of k + 1", "K", with({.steps = 3, .k = 1}, AsyncBug::kOneTooStale)},
      {"no request after a break", "END", with(bounded_breaks, AsyncBug::kNoAsk)},
      {"no request after a takeover", "END", with(spare, AsyncBug::kNoAsk)},
      {"one request only", "END", with(spare, AsyncBug::kAskOnlyOnce)},
  };
  for (const Case& one_case : cases) {
    SCOPED_TRACE(one_case.name);
    const Verdict verdict = ExploreAsync({one_case.name, one_case.world}, 2000000);
    EXPECT_NE(verdict.violation, "");
    EXPECT_THAT(verdict.violation, StartsWith(one_case.invariant))
        << absl::StrJoin(verdict.trace, "\n");
  }
}

}  // namespace
}  // namespace capstan::model
