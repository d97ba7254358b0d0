// The samples of the dataset that every lane of every step trains on: a pure function of (dataset
// size, seed, epoch, step, lanes). There is no reader state, so a process that dies loses nothing.
//
// kGlobal:     one permutation of the epoch by (seed, epoch), cut into batches of global_batch;
//              every batch is cut into lanes. The last batch of an epoch may be smaller.
// kContiguous: lane i owns the i-th part of the dataset, shuffled inside the part by (seed, epoch,
//              lane). In each step it takes its share of the batch until its part is used up.
// Both use every sample exactly once per epoch. The sizes of a batch's lanes, and of the parts,
// follow lane_weights by the largest remainder, with ties to the lower lane. With equal weights
// they differ by at most one. Without shuffling the order is the dataset's.
//
// Threads: const methods may be called from many threads.
#ifndef CAPSTAN_TRAINING_LANES_SAMPLE_PLAN_H_
#define CAPSTAN_TRAINING_LANES_SAMPLE_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "training/lanes/lane_tree.h"

namespace capstan::training {

inline constexpr int64_t kMaxDatasetSize = int64_t{1} << 32;  // samples
inline constexpr int64_t kMaxGlobalBatch = int64_t{1} << 24;  // samples

enum class Partition { kGlobal, kContiguous };

struct SamplePlanOptions {
  int64_t dataset_size = 0;          // samples, 1..kMaxDatasetSize
  int64_t global_batch = 0;          // samples per step, 1..min(dataset_size, kMaxGlobalBatch)
  int32_t lanes = 1;                 // 1..min(global_batch, kMaxLanes)
  std::vector<double> lane_weights;  // empty: equal; else one per lane, finite and > 0
  Partition partition = Partition::kGlobal;
  bool shuffle = true;
  uint64_t seed = 0;
};

// The permutation of the data in one epoch, which LaneSamples reads. 4 bytes per sample. It is made once per epoch
// and cached by the caller.
struct EpochPermutation {
  int64_t epoch = 0;
  std::vector<uint32_t> order;  // position -> dataset index; empty: the dataset's own order
};

// Cuts `total` items into weights.size() sizes by the largest remainder, with ties to the lower
// index.
// Weights are finite and > 0; 0 <= total <= 2^32.
std::vector<int64_t> CutByWeights(int64_t total, absl::Span<const double> weights);

class SamplePlan {
 public:
  // InvalidArgument, naming field, found value and limit: a value outside the ranges above, or a
  // lane whose share of a full batch would be 0 samples.
  static absl::StatusOr<SamplePlan> Create(SamplePlanOptions options);

  const SamplePlanOptions& options() const { return options_; }
  int32_t lanes() const { return options_.lanes; }
  // The tree over the lanes, without any empty lane.
  const LaneTree& lane_tree() const { return tree_; }

  // At least 1. kContiguous: the maximum over the lanes.
  int64_t steps_per_epoch() const { return steps_per_epoch_; }

  // `step` is global, from 0, never negative.
  int64_t EpochOf(int64_t step) const { return step / steps_per_epoch_; }
  int64_t StepInEpoch(int64_t step) const { return step % steps_per_epoch_; }

  // True number of samples of all lanes, or of one lane, in a step. A lane may have 0; it is then
  // absent in the step. A step always has at least one.
  int64_t StepSampleCount(int64_t step) const;
  int64_t LaneSampleCount(int64_t step, int32_t lane) const;
  // The most samples that `lane` has in any step. Buffers have this size. With unequal weights the
  // smaller last batch can give a lane one sample more than a full batch does, because largest
  // remainders do not grow evenly.
  int64_t MaxLaneSampleCount(int32_t lane) const;
  // Where the samples of (step, lane) begin in the epoch's permutation. They lie at [LaneOffset,
  // LaneOffset + LaneSampleCount).
  int64_t LaneOffset(int64_t step, int32_t lane) const;
  // Lanes without samples in the step, ascending.
  std::vector<int32_t> EmptyLanes(int64_t step) const;
  // lane_tree() with EmptyLanes(step) absent.
  LaneTree StepTree(int64_t step) const;

  // O(dataset_size). `epoch` in [0, 2^32).
  EpochPermutation MakeEpochPermutation(int64_t epoch) const;

  // Dataset indices of the samples of `lane`, in the order in which they are trained on.
  // `step_in_epoch` in [0, steps_per_epoch()); `permutation` comes from MakeEpochPermutation.
  std::vector<int64_t> LaneSamples(const EpochPermutation& permutation, int64_t step_in_epoch,
                                   int32_t lane) const;

 private:
  SamplePlan(SamplePlanOptions options, std::vector<int64_t> full_share);

  SamplePlanOptions options_;
  LaneTree tree_;
  int64_t steps_per_epoch_ = 0;
  std::vector<int64_t> full_share_;  // samples of each lane in a full batch
  std::vector<int64_t> last_share_;  // kGlobal: in the last batch of an epoch
  std::vector<int64_t> full_start_;  // running sums of full_share_
  std::vector<int64_t> last_start_;  // running sums of last_share_
  std::vector<int64_t> part_size_;   // kContiguous: samples that each lane owns
  std::vector<int64_t> part_start_;  // kContiguous: running sums of part_size_
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_LANES_SAMPLE_PLAN_H_
