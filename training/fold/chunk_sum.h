// The sum of one chunk over the lanes of one step (rules R1 and R6).
//
// Nodes may come in any order, repeated, and overlapping; the root has the bits of the plain tree
// sum of the lanes. An incoming node is added straight into its held sibling, so that its values
// are read once; it is copied only where no sibling is held.
//
// Memory: a buffer per held node; freed buffers are kept for the next step, so a steady step does
// not allocate. Threads: none of its own; calls on one object must not overlap.
#ifndef CAPSTAN_TRAINING_FOLD_CHUNK_SUM_H_
#define CAPSTAN_TRAINING_FOLD_CHUNK_SUM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "training/fold/held_nodes.h"
#include "training/lanes/lane_tree.h"

namespace capstan::training {

struct ChunkSumOptions {
  // How many held nodes may lie beyond the lowest missing lane; negative: no limit. A node that has
  // the lowest missing lane is always admitted, so that a step always goes on; the nodes below it
  // fold into at most log2(lanes) more.
  int32_t max_ahead_nodes = -1;
};

class ChunkSum {
 public:
  // `size` floats per value, >= 1. Allocates nothing yet.
  ChunkSum(LaneTree lanes, size_t size, ChunkSumOptions options = {});
  ChunkSum(ChunkSum&&) = default;
  ChunkSum& operator=(ChunkSum&&) = default;

  // Adds the value of `node`, of exactly size() floats. Reads `value` before it returns.
  // InvalidArgument: a wrong length, or a node that the tree has not. ResourceExhausted: a node
  // beyond max_ahead_nodes, to be sent again later. Nothing changes on an error.
  absl::StatusOr<Outcome> Add(const Node& node, absl::Span<const float> value);

  // The same from little-endian bytes in pieces that are cut and aligned anywhere, as a transport
  // hands them over: 4 * size() bytes together. Nothing is copied but what Add would copy.
  absl::StatusOr<Outcome> AddBytes(const Node& node, absl::Span<const absl::string_view> pieces);

  // What Add would answer, without the value.
  absl::StatusOr<Outcome> Check(const Node& node) const { return held_.Check(node); }

  size_t size() const { return size_; }
  const LaneTree& lanes() const { return held_.lanes(); }
  bool complete() const { return held_.complete(); }
  // The sum over all lanes; complete() must be true. Valid until Reset or destruction.
  absl::Span<const float> Root() const;

  // Held nodes, lowest lane first, and the value of one of them.
  std::vector<Node> Held() const;
  absl::Span<const float> Value(const Node& held) const;
  size_t held_count() const { return held_.entries().size(); }
  // Present lanes that are not in yet, ascending.
  std::vector<int32_t> MissingLanes() const { return held_.MissingLanes(); }

  // Forgets all values, keeps the buffers, and takes the tree of the next step, of the same lane
  // count.
  void Reset(const LaneTree& lanes);
  // Bytes of all buffers, used or kept.
  size_t allocated_bytes() const { return buffers_.size() * size_ * sizeof(float); }

 private:
  struct Free {
    void operator()(float* p) const;
  };
  template <typename Source>
  struct Values;

  int32_t TakeSlot();
  template <typename Source>
  absl::StatusOr<Outcome> AddFrom(const Node& node, const Source& source);

  HeldNodes held_;
  size_t size_;
  std::vector<std::unique_ptr<float[], Free>> buffers_;  // by slot; 64-byte aligned
  std::vector<int32_t> free_slots_;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_FOLD_CHUNK_SUM_H_
