// Tests the simulation itself: it must find bugs that are planted in the real code.
//
// found_seeds.txt has for each bug a seed that finds it, the classes of faults that it needs, and
// the invariant that sees it. Here that seed must fail with the bug, by that invariant. It must
// pass without the bug, and also with the bug if one of those classes is left out.
//
// CAPSTAN_FIND_MUTANTS=name (or `all`) searches 5000 seeds for the first one that finds the bug. It
// prints that seed, how many of the first 500 seeds find the bug, and the classes without which
// none of those 500 does. For bugs in kFoundAlone it also prints the first seed that finds the bug
// with its class alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/check/mutant.h"
#include "tests/sim/plan.h"
#include "tests/sim/world.h"

namespace capstan::sim {
namespace {

constexpr const char* kMutants[] = {
    "a_copy_at_once_counts",
    "a_part_is_the_whole",
    "an_old_view_fails",
    "announced_before_durable",
    "backs_off_for_ever",
    "begins_with_one_worker",
    "broken_stream_is_a_loss",
    "clip_factor_is_lost",
    "corrupt_not_sent_again",
    "decision_sent_is_shown",
    "descendants_not_dropped",
    "done_before_manifest",
    "evaluation_not_awaited",
    "events_of_the_forgotten_stay",
    "every_end_waits_for_a_view",
    "file_name_without_lineage",
    "finite_per_shard",
    "frames_in_order_alone",
    "frames_not_sent_again",
    "full_disk_ignored",
    "goodbye_loses_nothing",
    "have_version_ahead",
    "lapsed_is_gone",
    "last_files_tried_once",
    "last_piece_is_the_tensor",
    "last_shard_leads",
    "lead_forgets_decision",
    "local_begins_anew",
    "loss_scale_begins_anew",
    "manifest_ignores_lineage",
    "name_is_the_process",
    "new_process_has_the_tasks",
    "next_version_joins",
    "no_checksum",
    "no_checksum_on_restore",
    "no_dedupe",
    "no_fence",
    "no_fsync",
    "norm_of_the_last_part",
    "one_block_is_retained",
    "order_at_another_step",
    "own_pause_orphans",
    "own_silence_counts",
    "reissue_by_missing_seals",
    "retained_survives_lineage",
    "sealed_once",
    "shard_back_recovery_stays",
    "shown_is_past",
    "skipped_steps_are_updates",
    "sum_in_arrival_order",
    "sync_error_ignored",
    "the_failed_are_not_stopped",
    "weights_survive_lineage",
    "weights_survive_the_route",
    "weights_unchecked",
};

constexpr uint64_t kCounted = 500;  // seeds whose findings are counted
constexpr uint64_t kAlone = 1000;   // seeds that are tried with a single class

// Bugs that a single class of faults reveals. `seed` is the first seed that finds the bug with that
// class and no other fault. Without any fault, neither that seed nor an earlier one finds it. The
// kind of the job and of the cluster stays as drawn.
struct FoundAlone {
  FaultClass what;
  const char* mutant;
  uint64_t seed;
  const char* invariant;
};
constexpr FoundAlone kFoundAlone[] = {
    {FaultClass::kCut, "frames_not_sent_again", 143, "not ended 120 virtual seconds"},
    {FaultClass::kSlow, "next_version_joins", 2, "differs from the plain sum"},
    {FaultClass::kReorder, "frames_in_order_alone", 8, "not ended 120 virtual seconds"},
    {FaultClass::kOneWayCut, "decision_sent_is_shown", 44, "not ended 120 virtual seconds"},
    {FaultClass::kTaskPause, "own_pause_orphans", 35, "not ended 120 virtual seconds"},
    {FaultClass::kShardPause, "shard_back_recovery_stays", 512, "not ended 120 virtual seconds"},
    {FaultClass::kStreamBreak, "frames_not_sent_again", 118, "not ended 120 virtual seconds"},
    {FaultClass::kTaskCrash, "the_failed_are_not_stopped", 11, "not ended 120 virtual seconds"},
    {FaultClass::kWorkerCrash, "new_process_has_the_tasks", 49, "not ended 120 virtual seconds"},
    {FaultClass::kLeadBreak, "lead_forgets_decision", 111, "not ended 120 virtual seconds"},
    {FaultClass::kSessionBreak, "broken_stream_is_a_loss", 7, "and is taken for lost"},
    {FaultClass::kLeave, "goodbye_loses_nothing", 20, "not ended 120 virtual seconds"},
};

constexpr char kFile[] = "tests/sim/found_seeds.txt";

WorldResult RunWith(const char* mutant, const Plan& plan) {
  PlantMutant(mutant);
  WorldResult result = RunWorld(plan);
  PlantMutant("");
  return result;
}

// What can be switched off: one class, or all classes of a kind.
struct Switch {
  std::string name;
  std::vector<FaultClass> classes;
};

std::vector<Switch> Switches() {
  std::vector<Switch> all;
  for (int i = 0; i < kFaultClasses; ++i) {
    const auto what = static_cast<FaultClass>(i);
    all.push_back({std::string(NameOf(what)), {what}});
  }
  all.push_back({"cuts", {FaultClass::kCut, FaultClass::kOneWayCut}});
  all.push_back(
      {"pauses", {FaultClass::kTaskPause, FaultClass::kShardPause, FaultClass::kCoordinatorPause}});
  return all;
}

bool Has(const Plan& plan, const Switch& what) {
  return std::any_of(what.classes.begin(), what.classes.end(),
                     [&plan](FaultClass one) { return plan.has(one); });
}

Plan Without(Plan plan, const Switch& what) {
  for (const FaultClass one : what.classes) plan.Remove(one);
  return plan;
}

// The plan with no faults except those of the class `alone`.
Plan With(Plan plan, std::optional<FaultClass> alone) {
  for (int i = 0; i < static_cast<int>(FaultClass::kLocal); ++i) {
    const auto what = static_cast<FaultClass>(i);
    if (what != alone) plan.Remove(what);
  }
  return plan;
}

// Runs in a process of its own, because a bug may fail a check, which ends the process.
enum class Ending { kClean, kViolation, kCheck };

Ending RunApart(const char* mutant, const Plan& plan) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) _exit(RunWith(mutant, plan).violations.empty() ? 0 : 1);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return Ending::kCheck;
  return WEXITSTATUS(status) == 0 ? Ending::kClean : Ending::kViolation;
}

struct Found {
  uint64_t seed = 0;
  std::string needs;      // comma-separated names of switches; "-": none
  std::string invariant;  // a part of its message
};

std::map<std::string, Found> FoundSeeds() {
  std::map<std::string, Found> found;
  std::ifstream file(kFile);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    Found entry;
    if (!(words >> name >> entry.seed >> entry.needs)) continue;
    std::getline(words >> std::ws, entry.invariant);
    found[name] = entry;
  }
  return found;
}

// The classes without which none of the first kCounted seeds finds the bug. If there is no such
// class: the kinds. Seeds that find the bug with all classes are tried first.
std::string NeededBy(const char* mutant, const std::vector<uint64_t>& finders) {
  std::vector<uint64_t> seeds = finders;
  for (uint64_t seed = 1; seed <= kCounted; ++seed) {
    if (std::find(finders.begin(), finders.end(), seed) == finders.end()) seeds.push_back(seed);
  }
  std::vector<std::string> names;
  for (const Switch& what : Switches()) {
    if (what.classes.size() > 1 && !names.empty()) continue;
    const bool found = std::any_of(seeds.begin(), seeds.end(), [&](uint64_t seed) {
      const Plan plan = DrawPlan(seed);
      if (!Has(plan, what)) return std::find(finders.begin(), finders.end(), seed) != finders.end();
      return RunApart(mutant, Without(plan, what)) != Ending::kClean;
    });
    if (!found) names.push_back(what.name);
  }
  return names.empty() ? "-" : absl::StrJoin(names, ",");
}

void Find(const char* mutant) {
  uint64_t first = 0;
  int found = 0;
  std::vector<uint64_t> finders;
  for (uint64_t seed = 1; seed <= kCounted || (first == 0 && seed <= 5000); ++seed) {
    const Ending run = RunApart(mutant, DrawPlan(seed));
    if (run == Ending::kClean) continue;
    found += seed <= kCounted ? 1 : 0;
    finders.push_back(seed);
    if (first == 0 && run == Ending::kViolation && RunWith("", DrawPlan(seed)).violations.empty()) {
      first = seed;
    }
  }
  ASSERT_NE(first, 0u) << mutant << ": not found in 5000 seeds";
  const std::string what = RunWith(mutant, DrawPlan(first)).violations[0].substr(0, 150);
  std::printf("%-28s %4d %-18s # %d of %d: %s\n", mutant, static_cast<int>(first),
              NeededBy(mutant, finders).c_str(), found, static_cast<int>(kCounted), what.c_str());
  std::fflush(stdout);
}

TEST(MutantsTest, EveryPlantedBugIsFoundByItsSeed) {
  if (const char* wanted = std::getenv("CAPSTAN_FIND_MUTANTS"); wanted != nullptr) {
    for (const char* mutant : kMutants) {
      if (std::string(wanted) == "all" || std::string(wanted) == mutant) Find(mutant);
    }
    return;
  }
  const std::map<std::string, Found> seeds = FoundSeeds();
  for (const char* mutant : kMutants) {
    SCOPED_TRACE(mutant);
    const auto entry = seeds.find(mutant);
    ASSERT_NE(entry, seeds.end()) << "no line in " << kFile;
    const Found& found = entry->second;
    const Plan plan = DrawPlan(found.seed);
    ASSERT_FALSE(found.invariant.empty());
    EXPECT_THAT(RunWith(mutant, plan).violations,
                testing::Contains(testing::HasSubstr(found.invariant)));
    EXPECT_THAT(RunWith("", plan).violations, testing::IsEmpty());
    const std::vector<std::string> needs = absl::StrSplit(found.needs, ',');
    size_t known = 0;
    for (const Switch& what : Switches()) {
      if (std::find(needs.begin(), needs.end(), what.name) == needs.end()) continue;
      ++known;
      EXPECT_TRUE(Has(plan, what)) << what.name;
      EXPECT_THAT(RunWith(mutant, Without(plan, what)).violations, testing::IsEmpty())
          << "found without " << what.name;
    }
    EXPECT_EQ(known, found.needs == "-" ? 0 : needs.size()) << found.needs << " is none";
  }
  EXPECT_EQ(seeds.size(), std::size(kMutants));
}

// Bugs in the rules of asynchronous jobs, and in what these jobs share with others. `seed` is the first
// seed whose AsynchronousPlan finds the bug. CAPSTAN_FIND_MUTANTS prints it and how many of the first
// 500 find the bug.
struct AsynchronousBug {
  const char* mutant;
  uint64_t seed;
  const char* invariant;
};
constexpr AsynchronousBug kAsynchronousBugs[] = {
    {"any_weights_will_do", 7, "ahead of its weights"},
    {"applied_twice", 1, "contributions of lane"},
    {"corrupt_not_sent_again", 29, "not ended 120 virtual seconds"},
    {"frames_not_sent_again", 29, "not ended 120 virtual seconds"},
    {"lead_forgets_decision", 5, "not ended 120 virtual seconds"},
    {"marks_of_the_first_chunk", 1, "contributions of lane"},
    {"no_checksum", 1380, "contributions of lane"},
    {"no_fence", 580, "a frame was ahead of it"},
    {"one_answer_is_all", 29, "not ended 120 virtual seconds"},
    {"one_chunk_is_a_set", 5, "contributions of lane"},
    {"retained_survives_lineage", 97, "a frame was ahead of it"},
    {"sealed_once", 29, "not ended 120 virtual seconds"},
    {"skip_raises_no_mark", 1, "not ended 120 virtual seconds"},
    {"weights_survive_lineage", 18, "not ended 120 virtual seconds"},
    {"weights_unchecked", 47, "contributions of lane"},
};

void FindWith(const char* kind, const char* mutant, Plan (*plan_of)(uint64_t seed)) {
  uint64_t first = 0;
  int found = 0;
  for (uint64_t seed = 1; seed <= kCounted || (first == 0 && seed <= 5000); ++seed) {
    const Ending run = RunApart(mutant, plan_of(seed));
    if (run == Ending::kClean) continue;
    found += seed <= kCounted ? 1 : 0;
    if (first == 0 && run == Ending::kViolation) first = seed;
  }
  ASSERT_NE(first, 0u) << mutant << ": not found in 5000 seeds";
  const std::string what = RunWith(mutant, plan_of(first)).violations[0].substr(0, 150);
  std::printf("%s: %-26s %4d  # %d of %d: %s\n", kind, mutant, static_cast<int>(first), found,
              static_cast<int>(kCounted), what.c_str());
  std::fflush(stdout);
}

TEST(MutantsTest, EveryBugOfAnAsynchronousJobIsFoundByItsSeed) {
  const char* const wanted = std::getenv("CAPSTAN_FIND_MUTANTS");
  for (const AsynchronousBug& bug : kAsynchronousBugs) {
    if (wanted != nullptr) {
      if (std::string(wanted) == "all" || std::string(wanted) == bug.mutant)
        FindWith("asynchronous", bug.mutant, AsynchronousPlan);
      continue;
    }
    SCOPED_TRACE(bug.mutant);
    const Plan plan = AsynchronousPlan(bug.seed);
    EXPECT_THAT(RunWith(bug.mutant, plan).violations,
                testing::Contains(testing::HasSubstr(bug.invariant)));
    EXPECT_THAT(RunWith("", plan).violations, testing::IsEmpty());
  }
}

// Bugs in the rules of replicas. `seed` is the first seed whose ReplicaPlan finds the bug.
constexpr AsynchronousBug kReplicaBugs[] = {
    {"a_sum_counts_again", 1, "differs from the plain sum"},
    {"a_sum_fits_any_version", 81, "differs from the plain sum"},
    {"state_stays_behind", 4, "differs from the plain sum"},
};

TEST(MutantsTest, EveryBugOfAReplicaIsFoundByItsSeed) {
  const char* const wanted = std::getenv("CAPSTAN_FIND_MUTANTS");
  for (const AsynchronousBug& bug : kReplicaBugs) {
    if (wanted != nullptr) {
      if (std::string(wanted) == "all" || std::string(wanted) == bug.mutant)
        FindWith("a replica", bug.mutant, ReplicaPlan);
      continue;
    }
    SCOPED_TRACE(bug.mutant);
    const Plan plan = ReplicaPlan(bug.seed);
    EXPECT_THAT(RunWith(bug.mutant, plan).violations,
                testing::Contains(testing::HasSubstr(bug.invariant)));
    EXPECT_THAT(RunWith("", plan).violations, testing::IsEmpty());
  }
}

// Bugs in the rules of residuals (E2 to E4). `seed` is the first seed whose ResidualsPlan finds the bug.
constexpr AsynchronousBug kResidualBugs[] = {
    {"checkpoint_without_residuals", 3, "no checkpoint is left that is whole"},
    {"reissued_without_residual", 3, "has norms of"},
    {"residual_of_a_skipped_step", 1, "differs from the plain sum"},
    {"residuals_begin_anew", 3, "has norms of"},
    {"residuals_of_a_later_step", 3, "has norms of"},
};

TEST(MutantsTest, EveryBugOfResidualsIsFoundByItsSeed) {
  const char* const wanted = std::getenv("CAPSTAN_FIND_MUTANTS");
  for (const AsynchronousBug& bug : kResidualBugs) {
    if (wanted != nullptr) {
      if (std::string(wanted) == "all" || std::string(wanted) == bug.mutant)
        FindWith("residuals", bug.mutant, ResidualsPlan);
      continue;
    }
    SCOPED_TRACE(bug.mutant);
    const Plan plan = ResidualsPlan(bug.seed);
    EXPECT_THAT(RunWith(bug.mutant, plan).violations,
                testing::Contains(testing::HasSubstr(bug.invariant)));
    EXPECT_THAT(RunWith("", plan).violations, testing::IsEmpty());
  }
}

// A worker that has joined and got a lane that runs ahead is owed no answer. Without K2 it waits until
// the lane is called late and goes to another worker.
TEST(MutantsTest, WithoutAQuestionAJoinerWaits) {
  int late = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Plan plan = With(AsynchronousPlan(seed), std::nullopt);
    if (plan.min_workers == 0) continue;
    plan.orders.clear();
    plan.toy.nonfinite_step = -1;
    plan.max_staleness = 0;
    plan.evaluates = false;
    const WorldResult right = RunWorld(plan);
    ASSERT_THAT(right.violations, testing::IsEmpty()) << "seed " << seed;
    late += RunWith("nobody_asks_for_weights", plan).takeovers > right.takeovers ? 1 : 0;
  }
  std::printf("%d jobs had late lanes\n", late);
  EXPECT_GT(late, 5);
}

// Each class is needed by a bug, or finds one alone. So a test fails if the simulation loses a
// class.
TEST(MutantsTest, EveryClassHasABugOfItsOwn) {
  std::set<std::string> have;
  for (const auto& entry : FoundSeeds()) {
    for (const absl::string_view name : absl::StrSplit(entry.second.needs, ','))
      have.insert(std::string(name));
  }
  for (const FoundAlone& entry : kFoundAlone) have.insert(std::string(NameOf(entry.what)));
  for (int i = 0; i < kFaultClasses; ++i) {
    const auto what = static_cast<FaultClass>(i);
    EXPECT_EQ(have.count(std::string(NameOf(what))), 1u) << NameOf(what);
  }
}

uint64_t FirstThatFinds(const char* mutant, std::optional<FaultClass> alone, uint64_t last) {
  for (uint64_t seed = 1; seed <= last; ++seed) {
    if (RunApart(mutant, With(DrawPlan(seed), alone)) != Ending::kClean) return seed;
  }
  return 0;
}

void FindAlone(const FoundAlone& entry) {
  const uint64_t seed = FirstThatFinds(entry.mutant, entry.what, kAlone);
  ASSERT_NE(seed, 0u) << entry.mutant << ": not found in " << kAlone << " seeds";
  EXPECT_EQ(FirstThatFinds(entry.mutant, std::nullopt, seed), 0u) << "finds it without faults";
  std::printf("%s alone: %s, seed %d\n", std::string(NameOf(entry.what)).c_str(), entry.mutant,
              static_cast<int>(seed));
  std::fflush(stdout);
}

TEST(MutantsTest, AClassAloneFindsItsBug) {
  if (const char* wanted = std::getenv("CAPSTAN_FIND_MUTANTS"); wanted != nullptr) {
    for (const FoundAlone& entry : kFoundAlone) {
      if (std::string(wanted) == "all" || std::string(wanted) == entry.mutant) FindAlone(entry);
    }
    return;
  }
  for (const FoundAlone& entry : kFoundAlone) {
    SCOPED_TRACE(absl::StrCat(NameOf(entry.what), ", ", entry.mutant));
    const Plan plan = With(DrawPlan(entry.seed), entry.what);
    EXPECT_TRUE(plan.has(entry.what));
    EXPECT_THAT(RunWith(entry.mutant, plan).violations,
                testing::Contains(testing::HasSubstr(entry.invariant)));
    EXPECT_THAT(RunWith("", plan).violations, testing::IsEmpty());
    EXPECT_EQ(FirstThatFinds(entry.mutant, std::nullopt, entry.seed), 0u)
        << "that seed finds it without faults";
  }
}

// Each shard sends its newest version and cuts it off for the next one. So no version arrives
// whole, except by chance.
TEST(MutantsTest, WithoutHeldVersionsAThinLinkCarriesNone) {
  EXPECT_GE(RunWorld(ThinLinkPlan(1)).late_versions, 5);
  EXPECT_LT(RunWith("slow_readers_are_cut_off", ThinLinkPlan(1)).late_versions, 2);
}

// A move that does not wait for the manifest begins from an older one. A lead that goes by the shards of its
// first lineage does not wait for a new one.
TEST(MutantsTest, MovesOfShardsLoseStepsWithoutTheirRules) {
  const Plan plan = MovesPlan(1);
  EXPECT_EQ(RunWith("", plan).decided, plan.steps);
  EXPECT_GT(RunWith("moved_before_saved", plan).decided, plan.steps);
  EXPECT_NE(RunApart("shards_of_the_first_lineage", plan), Ending::kClean);
}

// Without the check of headers, a sum is added under another node, or a seal has other content.
TEST(MutantsTest, WithoutChecksOfHeadersTheBitsDiffer) {
  int found = 0;
  for (uint64_t seed = 1; seed <= 60 && found == 0; ++seed) {
    Plan plan = DrawPlan(seed);
    plan.exchange.corrupt_headers = 0.02;
    found += RunApart("no_header_check", plan) == Ending::kClean ? 0 : 1;
  }
  EXPECT_GT(found, 0);
}

}  // namespace
}  // namespace capstan::sim
