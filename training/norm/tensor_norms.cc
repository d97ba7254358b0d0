#include "training/norm/tensor_norms.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace capstan::training {
namespace {

using Key = std::pair<int32_t, int32_t>;

Key KeyOf(const TensorPiece& piece) { return {piece.chunk, piece.tensor}; }
Key KeyOf(const PieceSquares& squares) { return {squares.chunk, squares.tensor}; }

}  // namespace

TensorPieces::TensorPieces(const FlatLayout& layout) {
  const std::vector<TensorSlot>& slots = layout.slots();
  for (size_t tensor = 0; tensor < slots.size(); ++tensor) {
    if (slots[tensor].spec.kind != TensorKind::kWeight) continue;
    ++tensor_count_;
    const FlatRange range = slots[tensor].range();
    for (int64_t at = range.offset; at < range.end();) {
      const auto chunk = static_cast<int32_t>(at / layout.chunk_floats());
      const int64_t end = std::min(range.end(), layout.ChunkRange(chunk).end());
      pieces_.push_back({chunk, static_cast<int32_t>(tensor), {at, end - at}});
      at = end;
    }
  }
}

absl::Span<const TensorPiece> TensorPieces::Of(const ChunkRun& run) const {
  const auto below = [](const TensorPiece& piece, int32_t chunk) { return piece.chunk < chunk; };
  const auto first = std::lower_bound(pieces_.begin(), pieces_.end(), run.first_chunk, below);
  const auto end = std::lower_bound(first, pieces_.end(), run.end(), below);
  return absl::MakeConstSpan(pieces_).subspan(static_cast<size_t>(first - pieces_.begin()),
                                              static_cast<size_t>(end - first));
}

absl::Status TensorPieces::Check(absl::Span<const PieceSquares> squares) const {
  auto next = pieces_.begin();
  for (const PieceSquares& sums : squares) {
    const auto piece = std::lower_bound(
        next, pieces_.end(), KeyOf(sums),
        [](const TensorPiece& known, const Key& key) { return KeyOf(known) < key; });
    if (piece == pieces_.end() || KeyOf(*piece) != KeyOf(sums)) {
      return absl::InvalidArgumentError(absl::StrCat("tensor squares: chunk ", sums.chunk,
                                                     ", tensor ", sums.tensor,
                                                     ": no such piece, or not in ascending order"));
    }
    if (sums.weights < 0 || sums.direction < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor squares: chunk ", sums.chunk, ", tensor ", sums.tensor, ": got ",
                       sums.weights, " and ", sums.direction, ", want sums from 0 on"));
    }
    next = piece + 1;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorNorms>> TensorPieces::Norms(
    std::vector<PieceSquares> squares) const {
  std::sort(squares.begin(), squares.end(),
            [](const PieceSquares& a, const PieceSquares& b) { return KeyOf(a) < KeyOf(b); });
  if (absl::Status status = Check(squares); !status.ok()) return status;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    if (i < squares.size() && KeyOf(squares[i]) == KeyOf(pieces_[i])) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensor squares: chunk ", pieces_[i].chunk,
                                                   ", tensor ", pieces_[i].tensor, " has none"));
  }
  std::vector<TensorNorms> norms(static_cast<size_t>(tensor_count_));
  for (const PieceSquares& sums : squares) {
    norms[static_cast<size_t>(sums.tensor)].weights += sums.weights;
    norms[static_cast<size_t>(sums.tensor)].direction += sums.direction;
  }
  for (TensorNorms& norm : norms) {
    norm = {std::sqrt(norm.weights), std::sqrt(norm.direction)};
  }
  return norms;
}

}  // namespace capstan::training
