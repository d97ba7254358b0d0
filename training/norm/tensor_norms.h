// The norms of single tensors, for optimizers that compare a tensor's weights with its update (LARS,
// LAMB).
//
// Chunks cut the tensors with weights into pieces. A shard adds up the squares of each of its pieces
// in double, and the lead adds the pieces of a tensor in the order of their chunks. So a norm does
// not depend on which shard has which chunks. Padding and running statistics are in no piece.
//
// Threads: pure functions; a const TensorPieces may be used by many threads.
#ifndef CAPSTAN_TRAINING_NORM_TENSOR_NORMS_H_
#define CAPSTAN_TRAINING_NORM_TENSOR_NORMS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "training/chunks/flat_layout.h"
#include "training/chunks/placement.h"

namespace capstan::training {

// Of one shard: the squares of so many pieces, and the norms of so many tensors, fit into one message
// of the exchange (wire::kMaxMessageBytes). 64 KiB chunks: 2.5 GiB of weights on a shard.
inline constexpr int64_t kMaxPieces = 40000;

// The ratios of so many tensors fit into the header of a frame (wire::kMaxHeaderBytes), beside the
// checksums of its chunks.
inline constexpr int32_t kMaxRatiosOfAFrame = 6000;

// What a chunk has of a tensor.
struct TensorPiece {
  int32_t chunk = 0;
  int32_t tensor = 0;  // index in FlatLayout::slots()
  FlatRange range;     // of the flat vector
};

// Sums of squares over a piece. Not finite if a weight or a direction is not.
struct PieceSquares {
  int32_t chunk = 0;
  int32_t tensor = 0;
  double weights = 0;
  double direction = 0;  // TrustRule::DirectionSquares
  friend bool operator==(const PieceSquares&, const PieceSquares&) = default;
};

// Euclidean norms of a tensor.
struct TensorNorms {
  double weights = 0;
  double direction = 0;
  friend bool operator==(const TensorNorms&, const TensorNorms&) = default;
};

class TensorPieces {
 public:
  explicit TensorPieces(const FlatLayout& layout);

  // Tensors with weights. They are the first ones of FlatLayout::slots().
  int32_t tensor_count() const { return tensor_count_; }
  // Those of the chunks of `run`, by chunk and then by tensor.
  absl::Span<const TensorPiece> Of(const ChunkRun& run) const;

  // InvalidArgument: not pieces of this layout in ascending order, or a sum below 0.
  absl::Status Check(absl::Span<const PieceSquares> squares) const;

  // By tensor. `squares` may come in any order. InvalidArgument: Check fails for the sorted ones, or
  // one is missing; names the first such chunk.
  absl::StatusOr<std::vector<TensorNorms>> Norms(std::vector<PieceSquares> squares) const;

 private:
  std::vector<TensorPiece> pieces_;
  int32_t tensor_count_ = 0;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_NORM_TENSOR_NORMS_H_
