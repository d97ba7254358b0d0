// Pure plans of how several devices sum the gradients of a step's lanes. Other code executes them.
//
// The flat vector is cut into buckets, which leave one after the other during backward. Each bucket
// is cut into one slice per device. A device sums its slice over all lanes and copies it to the
// host, so the sum reaches the host once, over the links of all devices. The weights go the other
// way: each device takes its slice from the host and the rest from its neighbours.
//
// Lanes come in rounds, with at most one per device and round. The work on a slice does not depend
// on the slice, so one list of operations serves all of them. The result is the sums of one
// worker's blocks. Without `reduce` the additions are those of the lane tree (rule R1), with the
// same bits as the host's fold. With `reduce`, a round that lies in one block is summed by one
// reduction, in any order (D0).
//
// Threads: values and pure functions.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_COLLECTIVE_COLLECTIVE_H_
#define CAPSTAN_GPU_WORKER_ENGINE_COLLECTIVE_COLLECTIVE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "training/chunks/flat_layout.h"
#include "training/lanes/lane_tree.h"

namespace capstan::engine {

struct BucketOptions {
  int64_t min_floats = (4 << 20) / 4;
  int64_t max_floats = (25 << 20) / 4;
};

// The rising ends of the buckets; the last one is `total_floats`. `ready`: the prefixes of the
// vector that are final after each stage of backward (BackwardStage::ready_floats), never falling.
// A bucket ends at a stage that completes at least min_floats since the last end, and is cut if it
// has more than max_floats. The rest is the last bucket.
std::vector<int64_t> PlanBuckets(absl::Span<const int64_t> ready, int64_t total_floats,
                                 const BucketOptions& options = {});

// The part of [begin, end) that belongs to `device` of `devices`: equal multiples of 16 floats,
// with the rest for the last device. May be empty.
training::FlatRange SliceOf(int64_t begin, int64_t end, int device, int devices);

enum class FoldKind {
  kTake = 0,       // slot = the lane of `device`
  kAddLane = 1,    // slot += the lane of `device`
  kAddSlot = 2,    // slot += slot `from`
  kReduce = 3,     // slot = the sum over the round's lanes
  kReduceAdd = 4,  // slot += the sum over the round's lanes
  kEmit = 5,       // slot is the sum of block `block` and does not change any more
};

// An operation on one slice, on the device that owns it. Operations run in their order. Those of a
// round read the gradients of that round.
struct FoldOp {
  FoldKind kind = FoldKind::kTake;
  int32_t round = 0;
  int32_t slot = 0;
  int32_t device = -1;
  int32_t from = -1;
  int32_t block = -1;

  friend bool operator==(const FoldOp& a, const FoldOp& b) {
    return a.kind == b.kind && a.round == b.round && a.slot == b.slot && a.device == b.device &&
           a.from == b.from && a.block == b.block;
  }
};

struct FoldPlan {
  std::vector<std::vector<int32_t>> rounds;  // the lane of each device; -1: no lane
  std::vector<FoldOp> ops;
  std::vector<training::LaneBlock>
      blocks;  // the largest blocks that the lanes make, lowest lane first
  int32_t slots = 0;
};

// `lanes`: the lanes of each device, in the order in which it computes them. All must be present in
// `tree`, and none may be repeated. InvalidArgument otherwise.
absl::StatusOr<FoldPlan> PlanFold(const training::LaneTree& tree,
                                  const std::vector<std::vector<int32_t>>& lanes, bool reduce);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_COLLECTIVE_COLLECTIVE_H_
