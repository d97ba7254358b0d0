// The tree sum of whole gradient vectors, each added as soon as its sibling is there (rule R1): at
// most log2(lanes) + 1 vectors are held besides those that are being computed.
//
// A vector is kept by reference and added into in place, never copied. Built on the same HeldNodes
// and AddInto as a shard's chunks, so the bits are the same.
//
// Thread-safe: devices add at once, one at a time.
#ifndef CAPSTAN_GPU_WORKER_TASK_NODE_FOLD_H_
#define CAPSTAN_GPU_WORKER_TASK_NODE_FOLD_H_

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "param_store/client/float_buffer.h"
#include "services/sync/mutex.h"
#include "training/fold/held_nodes.h"
#include "training/lanes/lane_tree.h"

namespace capstan::gpu_worker {

using param_store::client::BufferPool;
using param_store::client::FloatBuffer;

class NodeFold {
 public:
  explicit NodeFold(training::LaneTree tree) : held_(std::move(tree), /*max_ahead=*/-1) {}

  // Takes the value of a node that nobody else writes any more. A node that is held already, or
  // whose ancestor is, changes nothing. InvalidArgument: a node that the tree has not.
  absl::Status Add(const training::Node& node, std::shared_ptr<FloatBuffer> value)
      ABSL_LOCKS_EXCLUDED(mu_);

  // The value of a held node, not changed any more as long as nothing above the node is added
  // together. Null where the node is not held.
  std::shared_ptr<FloatBuffer> Value(const training::Node& node) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Values;

  mutable Mutex mu_;
  training::HeldNodes held_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<FloatBuffer>> slots_ ABSL_GUARDED_BY(mu_);
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_NODE_FOLD_H_
