// The squared Euclidean norm of a step's gradient, for clipping by norm.
//
// A chunk's square sum is the sum of the squares of its floats, in double. Shards add the square
// sums of their chunks, and the lead adds those of all shards. Additions of doubles do not
// associate, so all of them follow one binary tree over the chunks with weights: a block is
// [k*2^j, (k+1)*2^j), and the value of a block is left + right. A block without chunks is absent,
// and its parent is then the other child. So the norm does not depend on which shard has which
// chunks. Running statistics are no part of a gradient (rule R3), and their chunks lie behind the
// tree.
//
// The square of a float and the sum of 2^31 of them fit into a double. So a square sum is finite if
// and only if all floats are.
//
// Threads: pure functions; a const NormTree may be used by many threads.
#ifndef CAPSTAN_TRAINING_NORM_NORM_TREE_H_
#define CAPSTAN_TRAINING_NORM_NORM_TREE_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "training/chunks/flat_layout.h"
#include "training/chunks/placement.h"
#include "training/norm/tensor_norms.h"

namespace capstan::training {

// The chunks [first_chunk, first_chunk + chunk_count). chunk_count is a power of two and
// first_chunk a multiple of it.
struct ChunkBlock {
  int32_t first_chunk = 0;
  int32_t chunk_count = 1;
  friend bool operator==(const ChunkBlock&, const ChunkBlock&) = default;
};

struct BlockSquares {
  ChunkBlock block;
  double square_sum = 0;
  friend bool operator==(const BlockSquares&, const BlockSquares&) = default;
};

// What a shard knows of its sums of a step.
struct RootReport {
  bool finite = false;                // no infinity and no NaN
  std::vector<BlockSquares> squares;  // ascending; empty unless the job clips by norm
  // Of all pieces of the shard, ascending; empty unless the optimizer has a trust rule.
  std::vector<PieceSquares> pieces = {};
  friend bool operator==(const RootReport&, const RootReport&) = default;
};

// The sum of squares, in 16 partial sums: element i goes to the i % 16th. These are added pairwise,
// so the result does not depend on the instruction set.
double SquareSum(absl::Span<const float> values);

class NormTree {
 public:
  // For the chunks that have weights, at least 1.
  explicit NormTree(int32_t chunk_count);
  explicit NormTree(const FlatLayout& layout);

  int32_t chunk_count() const { return chunk_count_; }

  // The fewest blocks for `sums`, the square sums of the chunks from first_chunk on. Chunks behind
  // the tree are left out.
  std::vector<BlockSquares> Blocks(int32_t first_chunk, absl::Span<const double> sums) const;

  // InvalidArgument: not blocks of this tree, ascending and without overlap, or a square sum that
  // no floats have: negative, a NaN, or above 2^288.
  absl::Status Check(absl::Span<const BlockSquares> blocks) const;

  // The square sum of all chunks. `blocks` may come in any order. InvalidArgument: Check fails for
  // the sorted blocks, or they do not cover the tree; names the first chunk without a value.
  absl::StatusOr<double> Total(std::vector<BlockSquares> blocks) const;

 private:
  // Adds siblings where both are there. `blocks` are ascending and do not overlap.
  std::vector<BlockSquares> Joined(absl::Span<const BlockSquares> blocks) const;

  int32_t chunk_count_;
  int32_t root_chunks_;  // power of two
};

// Looks at the sums of the chunks of `run`: `sum(i)` is that of chunk i of the run. `norms` is null
// if no norm is wanted. Each float is read once.
RootReport ReportRoots(const FlatLayout& layout, const ChunkRun& run, const NormTree* norms,
                       absl::FunctionRef<absl::Span<const float>(int32_t)> sum);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_NORM_NORM_TREE_H_
