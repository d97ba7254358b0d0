// The residuals of error feedback are right in every state of small worlds. Without any one rule
// they are not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "tests/model/residual_protocol.h"

namespace capstan::model {
namespace {

using ::testing::StartsWith;

struct NamedResiduals {
  const char* name;
  ResidualWorld world;
};

Verdict Explore(const NamedResiduals& named, size_t max_states) {
  Verdict verdict = Search(named.world, max_states);
  std::printf("%-46s %8zu states %9zu transitions, depth %3zu, %5zu ends%s%s\n", named.name,
              verdict.states, verdict.transitions, verdict.depth, verdict.done_states,
              verdict.violation.empty() ? "" : ": ", verdict.violation.c_str());
  return verdict;
}

TEST(ResidualModelTest, EveryContributionHasTheResidualOfItsLane) {
  const std::vector<NamedResiduals> worlds = {
      {"no fault", {.checkpoints = 2}},
      {"a worker dies", {.checkpoints = 2, .deaths = 1}},
      {"a worker dies twice", {.checkpoints = 6, .deaths = 2}},
      {"a worker is suspected", {.checkpoints = 2, .suspicions = 1}},
      {"a death and a suspicion", {.checkpoints = 2, .deaths = 1, .suspicions = 1}},
      {"a step that is not finite, a death",
       {.steps = 4, .checkpoints = 4, .nonfinite_step = 1, .deaths = 1}},
      {"the step behind the manifest is not finite",
       {.steps = 4, .checkpoints = 2, .nonfinite_step = 1, .deaths = 1}},
      {"a lane moves", {.checkpoints = 0, .moves = 1}},
      {"a lane moves, a death", {.checkpoints = 2, .moves = 1, .deaths = 1}},
      {"three lanes, two workers, a death", {.lanes = 3, .checkpoints = 2, .deaths = 1}},
      {"three workers, a suspicion",
       {.lanes = 3, .workers = 3, .steps = 2, .checkpoints = 2, .suspicions = 1}},
      {"a store crashes", {.checkpoints = 6, .crashes = 1}},
      {"a store crashes, a worker dies", {.checkpoints = 2, .deaths = 1, .crashes = 1}},
      {"a lane without samples, not finite before it",
       {.steps = 4, .checkpoints = 2, .nonfinite_step = 1, .empty_step = 2, .deaths = 1}},
      {"a lane without samples behind one that is not finite",
       {.steps = 4, .checkpoints = 10, .nonfinite_step = 1, .empty_step = 2, .deaths = 1}},
  };
  const bool sanitized = std::getenv("CAPSTAN_SANITIZED") != nullptr;
  size_t states = 0;
  for (const NamedResiduals& named : worlds) {
    SCOPED_TRACE(named.name);
    const Verdict verdict = Explore(named, sanitized ? 5000 : 5000000);
    EXPECT_EQ(verdict.violation, "") << absl::StrJoin(verdict.trace, "\n");
    if (!sanitized) {
      EXPECT_TRUE(verdict.complete);
      EXPECT_GT(verdict.done_states, 0u);
    }
    states += verdict.states;
  }
  std::printf("%zu states in all\n", states);
}

TEST(ResidualModelTest, EveryRuleTakenAwayIsMissed) {
  struct Case {
    const char* name;
    ResidualWorld world;
  };
  const std::vector<Case> cases = {
      {"commit before applied",
       {.steps = 3, .nonfinite_step = 1, .bug = ResidualBug::kCommitBeforeApplied}},
      {"a manifest without a unit",
       {.checkpoints = 2, .deaths = 1, .bug = ResidualBug::kManifestWithoutAUnit}},
      {"written after the next step", {.checkpoints = 2, .bug = ResidualBug::kWrittenAfterTheNext}},
      {"residuals by node", {.checkpoints = 2, .deaths = 1, .bug = ResidualBug::kResidualByNode}},
      {"residuals by node, a lane moves", {.moves = 1, .bug = ResidualBug::kResidualByNode}},
      {"issued again with nothing", {.deaths = 1, .bug = ResidualBug::kReissueWithNothing}},
      {"suspected, issued again with nothing",
       {.suspicions = 1, .bug = ResidualBug::kReissueWithNothing}},
      {"residuals survive a lineage",
       {.checkpoints = 2, .crashes = 1, .bug = ResidualBug::kResidualsSurvive}},
      {"missed steps count as applied",
       {.steps = 4,
        .nonfinite_step = 1,
        .empty_step = 2,
        .bug = ResidualBug::kMissedStepsAreApplied}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    const Verdict verdict = Explore({one.name, one.world}, 2000000);
    EXPECT_THAT(verdict.violation, StartsWith("E:")) << absl::StrJoin(verdict.trace, "\n");
  }
}

}  // namespace
}  // namespace capstan::model
