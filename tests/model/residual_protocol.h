// The rules of error feedback's residuals (exchange/README.md, E1 to E4) as a state machine that is
// small enough for an exhaustive search.
//
// E1  A unit of compression is a lane. What is sent for it does not depend on who computes it.
// E2  What a lane's step leaves out is its residual. It is added to the lane's next step with
//     samples, and it counts only if the version says that the step was applied.
// E3  A checkpoint has the residual of every lane, as it is at the version. The owner of a lane
//     writes it before it computes on the version. The manifest is committed when all are there.
// E4  A lane keeps its owner for the whole lineage. If the owner is lost, or the lane is to move, the
//     next lineage begins from the last manifest, and the owners read the residuals from it. An
//     owner may miss versions whose steps have no samples for it. The next one says which of the
//     steps behind it were skipped.
//
// The model has up to three workers and three lanes, one store, and a coordinator. Weights are left
// out: tests/model/protocol.h has them. A residual is the lane and the number of its steps that it
// has seen applied. A contribution is right if it was made with the residual that the lane has
// without any fault. `E` is broken when the store counts another one, or a manifest has one.
//
// Messages may arrive at any later time, any number of times. A lost message is one that arrives
// late, because the worker is dead or the lineage over by then.
#ifndef CAPSTAN_TESTS_MODEL_RESIDUAL_PROTOCOL_H_
#define CAPSTAN_TESTS_MODEL_RESIDUAL_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/model/searcher.h"

namespace capstan::model {

inline constexpr int kUnits = 3;  // lanes
inline constexpr int kUnitSteps = 4;
inline constexpr int kUnitOwners = 3;  // workers
inline constexpr int kUnitManifests = 8;
inline constexpr uint8_t kNothing = 255;

// The removal or the change of one rule.
enum class ResidualBug : uint8_t {
  kNone,
  kCommitBeforeApplied,    // E2: what a step left out counts as soon as it is encoded
  kManifestWithoutAUnit,   // E3: committed although the residual of a lane is missing
  kWrittenAfterTheNext,    // E3: written when the next step has been encoded
  kResidualByNode,         // E3: a checkpoint has one residual for each worker
  kReissueWithNothing,     // E4: a lane moves inside a lineage and begins with no residual
  kResidualsSurvive,       // E4: a worker keeps its residuals in a new lineage
  kMissedStepsAreApplied,  // E4: an owner that misses a version takes its step as applied
};

// A small world, and the faults that it allows.
struct ResidualWorld {
  int lanes = 2;
  int workers = 2;
  int steps = 3;             // T
  unsigned checkpoints = 0;  // bit v: version v is saved
  int nonfinite_step = -1;   // its version is that before it again
  int empty_step = -1;       // the last lane has no sample in it
  int moves = 0;             // hand-overs that move a lane to another worker
  int deaths = 0;            // of workers
  int suspicions = 0;        // a worker is taken for lost and lives
  int crashes = 0;           // of the store
  ResidualBug bug = ResidualBug::kNone;
};

struct UnitOwner {
  uint8_t alive = 1;
  uint8_t lineage = 0;
  uint8_t version = kNothing;
  uint8_t computed = 0;  // mask of lanes, at the version
  uint8_t now[kUnits] = {kNothing, kNothing, kNothing};
  uint8_t next[kUnits] = {kNothing, kNothing, kNothing};  // what the step left out
  uint8_t spare[6] = {};
};

struct UnitManifest {
  uint8_t lineage = 0;
  uint8_t version = 0;
  uint8_t residual[kUnits] = {};
  uint8_t by_node[kUnitOwners] = {};  // only for kResidualByNode
};

struct ResidualCore {
  UnitOwner worker[kUnitOwners];
  UnitManifest manifest[kUnitManifests];
  // The store.
  uint8_t lineage = 1;
  uint8_t version = 0;
  uint8_t held = 0;     // mask of lanes
  uint8_t stopped = 0;  // the version is the last of its lineage
  // The coordinator.
  uint8_t manifests = 1;
  uint8_t base = 0;
  uint8_t saved = 0;  // the newest version of the lineage that is committed
  uint8_t ordered = 0;
  uint8_t owner[kUnits] = {};
  uint8_t moves = 0, deaths = 0, suspicions = 0, crashes = 0;
  uint8_t collected[kUnitSteps + 1] = {};  // by version: mask of lanes
  uint8_t files[kUnitSteps + 1][kUnits] = {};
  uint8_t spare[5] = {};
};

struct ResidualState {
  ResidualCore core;
  std::vector<uint64_t> network;  // sorted
};

// Searches the world, at most so many states.
Verdict Search(const ResidualWorld& world, size_t max_states);

}  // namespace capstan::model

#endif  // CAPSTAN_TESTS_MODEL_RESIDUAL_PROTOCOL_H_
