// The tree sum of whole gradient vectors. Each vector is added as soon as its sibling is there
// (rule R1). So at most log2(lanes) + 1 vectors are held, in addition to those being computed. If
// lanes are kept apart, nothing is added, and each vector is held until it is taken.
//
// A vector is kept by reference and added into in place, never copied. This uses the same HeldBlocks
// and AddInto as a shard's chunks, so the bits are the same.
//
// Thread-safe: devices may call it at the same time; additions run one at a time.
#ifndef CAPSTAN_GPU_WORKER_TASK_NODE_FOLD_H_
#define CAPSTAN_GPU_WORKER_TASK_NODE_FOLD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "exchange/float_buffer.h"
#include "services/sync/mutex.h"
#include "training/fold/held_blocks.h"
#include "training/lanes/lane_tree.h"

namespace capstan::gpu_worker {

using exchange::BufferPool;
using exchange::FloatBuffer;

// Whether lanes are added up before they leave the worker. They are not in asynchronous jobs and if
// gradients are compressed.
enum class LaneSums { kTree, kApart };

class LaneFold {
 public:
  explicit LaneFold(training::LaneTree tree, LaneSums sums = LaneSums::kTree)
      : sums_(sums), held_(std::move(tree)) {}

  // Takes the value of a block, which nobody else may write any more. Changes nothing if the block or
  // its ancestor is already held. InvalidArgument: a block that the tree does not have, or, if lanes
  // are kept apart, one of several lanes.
  absl::Status Add(const training::LaneBlock& block, std::shared_ptr<FloatBuffer> value)
      ABSL_LOCKS_EXCLUDED(mu_);

  // The value of a held block. It does not change unless the block is folded into its parent. Null if
  // the block is not held.
  std::shared_ptr<FloatBuffer> Value(const training::LaneBlock& block) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // If lanes are kept apart: takes the value of a lane out of the fold. Null if it is not held.
  std::shared_ptr<FloatBuffer> Take(int32_t lane) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Values;

  const LaneSums sums_;
  mutable Mutex mu_;
  training::HeldBlocks held_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<FloatBuffer>> slots_ ABSL_GUARDED_BY(mu_);
  std::map<int32_t, std::shared_ptr<FloatBuffer>> apart_ ABSL_GUARDED_BY(mu_);  // by lane
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_NODE_FOLD_H_
