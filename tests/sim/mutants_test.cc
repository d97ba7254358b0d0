// The simulation is tested itself: bugs that are planted in the real code are found.
//
// found_seeds.txt says, for each bug, a seed that finds it. Here that seed fails with the bug and
// passes without. CAPSTAN_FIND_MUTANTS=name (or `all`) looks for the first such seed of that bug
// among 5000 and prints its line, and how many of the first 500 find it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>

#include "absl/strings/str_join.h"
#include "services/check/mutant.h"
#include "tests/sim/plan.h"
#include "tests/sim/world.h"

namespace capstan::sim {
namespace {

constexpr const char* kMutants[] = {
    "announced_before_durable",
    "descendants_not_dropped",
    "done_before_manifest",
    "evaluation_not_awaited",
    "file_name_without_lineage",
    "finite_per_shard",
    "lead_forgets_decision",
    "manifest_ignores_lineage",
    "no_checksum",
    "no_checksum_on_restore",
    "no_dedupe",
    "no_fence",
    "no_fsync",
    "order_at_another_step",
    "reissue_by_missing_seals",
    "sealed_once",
    "sum_in_arrival_order",
    "weights_survive_lineage",
};

constexpr uint64_t kCounted = 500;  // seeds
constexpr char kFile[] = "tests/sim/found_seeds.txt";

WorldResult RunWith(const char* mutant, uint64_t seed) {
  PlantMutant(mutant);
  WorldResult result = RunWorld(DrawPlan(seed));
  PlantMutant("");
  return result;
}

// In a process of its own: a bug may run into a check, which ends it.
enum class Ending { kClean, kViolation, kCheck };

Ending RunApart(const char* mutant, uint64_t seed) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) _exit(RunWith(mutant, seed).violations.empty() ? 0 : 1);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return Ending::kCheck;
  return WEXITSTATUS(status) == 0 ? Ending::kClean : Ending::kViolation;
}

std::map<std::string, uint64_t> FoundSeeds() {
  std::map<std::string, uint64_t> seeds;
  std::ifstream file(kFile);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    uint64_t seed = 0;
    if (words >> name >> seed) seeds[name] = seed;
  }
  return seeds;
}

TEST(MutantsTest, EveryPlantedBugIsFoundByItsSeed) {
  if (const char* wanted = std::getenv("CAPSTAN_FIND_MUTANTS"); wanted != nullptr) {
    for (const char* mutant : kMutants) {
      if (std::string(wanted) != "all" && std::string(wanted) != mutant) continue;
      uint64_t first = 0;
      int found = 0;
      for (uint64_t seed = 1; seed <= kCounted || (first == 0 && seed <= 5000); ++seed) {
        const Ending run = RunApart(mutant, seed);
        if (run == Ending::kClean) continue;
        found += seed <= kCounted ? 1 : 0;
        if (first == 0 && run == Ending::kViolation && RunWith("", seed).violations.empty())
          first = seed;
      }
      const std::string what =
          first == 0 ? "" : RunWith(mutant, first).violations[0].substr(0, 100);
      std::printf("%-28s %6d   # %d of %d: %s\n", mutant, static_cast<int>(first), found,
                  static_cast<int>(kCounted), what.c_str());
      std::fflush(stdout);
      EXPECT_NE(first, 0u) << mutant << ": not found in 5000 seeds";
    }
    return;
  }
  const std::map<std::string, uint64_t> seeds = FoundSeeds();
  for (const char* mutant : kMutants) {
    SCOPED_TRACE(mutant);
    const auto seed = seeds.find(mutant);
    ASSERT_NE(seed, seeds.end()) << "no line in " << kFile;
    EXPECT_FALSE(RunWith(mutant, seed->second).violations.empty());
    const WorldResult without = RunWith("", seed->second);
    EXPECT_TRUE(without.violations.empty()) << absl::StrJoin(without.violations, "\n");
  }
  EXPECT_EQ(seeds.size(), std::size(kMutants));
}

}  // namespace
}  // namespace capstan::sim
