#include "training/norm/norm_tree.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "training/fold/add.h"

// This file is built with -O3. The loop over partial sums is plain, so that the compiler vectorises
// it.
namespace capstan::training {
namespace {

constexpr size_t kPartialSums = 16;
// Of kMaxFlatFloats floats, each below 2^128. The sum of two such numbers for each chunk is finite.
constexpr double kMostSquareSum = 0x1p288;

bool IsPowerOfTwo(int32_t value) { return value > 0 && (value & (value - 1)) == 0; }

int64_t EndOf(const ChunkBlock& block) {
  return static_cast<int64_t>(block.first_chunk) + block.chunk_count;
}

int32_t WeightChunks(const FlatLayout& layout) {
  int32_t chunks = 0;
  while (chunks < layout.chunk_count() && layout.ChunkKind(chunks) == TensorKind::kWeight) ++chunks;
  return chunks;
}

}  // namespace

double SquareSum(absl::Span<const float> values) {
  std::array<double, kPartialSums> sums = {};
  const size_t whole = values.size() / kPartialSums * kPartialSums;
  const float* const data = values.data();
  for (size_t at = 0; at < whole; at += kPartialSums) {
    for (size_t i = 0; i < kPartialSums; ++i) {
      const double value = data[at + i];
      sums[i] += value * value;
    }
  }
  for (size_t i = 0; whole + i < values.size(); ++i) {
    const double value = data[whole + i];
    sums[i] += value * value;
  }
  for (size_t half = kPartialSums / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

NormTree::NormTree(int32_t chunk_count) : chunk_count_(chunk_count), root_chunks_(1) {
  CAPSTAN_CHECK(chunk_count >= 1 && chunk_count <= kMaxChunks);
  while (root_chunks_ < chunk_count) root_chunks_ *= 2;
}

NormTree::NormTree(const FlatLayout& layout) : NormTree(WeightChunks(layout)) {}

std::vector<BlockSquares> NormTree::Joined(absl::Span<const BlockSquares> blocks) const {
  std::vector<BlockSquares> joined;
  for (BlockSquares last : blocks) {
    while (last.block.chunk_count < root_chunks_) {
      ChunkBlock& block = last.block;
      if ((block.first_chunk & block.chunk_count) != 0) {
        // The right child: it joins its sibling if that is the block before it.
        const ChunkBlock left = {block.first_chunk - block.chunk_count, block.chunk_count};
        if (joined.empty() || joined.back().block != left) break;
        last.square_sum = joined.back().square_sum + last.square_sum;
        block.first_chunk = left.first_chunk;
        joined.pop_back();
      } else if (EndOf(block) < chunk_count_) {
        break;  // the left child waits for its sibling
      }
      block.chunk_count *= 2;
    }
    joined.push_back(last);
  }
  return joined;
}

std::vector<BlockSquares> NormTree::Blocks(int32_t first_chunk,
                                           absl::Span<const double> sums) const {
  std::vector<BlockSquares> blocks;
  for (const double sum : sums) {
    if (first_chunk >= chunk_count_) break;
    blocks.push_back({{first_chunk++, 1}, sum});
  }
  return Joined(blocks);
}

absl::Status NormTree::Check(absl::Span<const BlockSquares> blocks) const {
  int64_t next = 0;
  for (const auto& [block, square_sum] : blocks) {
    if (!IsPowerOfTwo(block.chunk_count) || block.chunk_count > root_chunks_ ||
        block.first_chunk < next || block.first_chunk >= chunk_count_ ||
        block.first_chunk % block.chunk_count != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("square sums: chunks [", block.first_chunk, ",+", block.chunk_count,
                       "): want an aligned block from ", next, " on, of ", chunk_count_));
    }
    if (!(square_sum >= 0 && square_sum <= kMostSquareSum)) {
      return absl::InvalidArgumentError(absl::StrCat("square sums: chunks [", block.first_chunk,
                                                     ",+", block.chunk_count, "): got ", square_sum,
                                                     ", want 0..", kMostSquareSum));
    }
    next = EndOf(block);
  }
  return absl::OkStatus();
}

absl::StatusOr<double> NormTree::Total(std::vector<BlockSquares> blocks) const {
  std::sort(blocks.begin(), blocks.end(), [](const BlockSquares& a, const BlockSquares& b) {
    return a.block.first_chunk < b.block.first_chunk;
  });
  if (absl::Status status = Check(blocks); !status.ok()) return status;
  int64_t next = 0;
  for (const BlockSquares& squares : blocks) {
    if (squares.block.first_chunk > next) break;
    next = EndOf(squares.block);
  }
  if (next < chunk_count_) {
    return absl::InvalidArgumentError(
        absl::StrCat("square sums: chunk ", next, " of ", chunk_count_, " has none"));
  }
  const std::vector<BlockSquares> root = Joined(blocks);
  CAPSTAN_CHECK(root.size() == 1);
  return root[0].square_sum;
}

RootReport ReportRoots(const FlatLayout& layout, const ChunkRun& run, const NormTree* norms,
                       absl::FunctionRef<absl::Span<const float>(int32_t)> sum) {
  RootReport report;
  report.finite = true;
  std::vector<double> squares;
  for (int32_t i = 0; i < run.chunk_count && report.finite; ++i) {
    if (norms == nullptr || layout.ChunkKind(run.first_chunk + i) == TensorKind::kStat) {
      report.finite = AllFinite(sum(i));
      continue;
    }
    squares.push_back(SquareSum(sum(i)));
    report.finite = std::isfinite(squares.back());
  }
  if (norms != nullptr && report.finite) report.squares = norms->Blocks(run.first_chunk, squares);
  return report;
}

}  // namespace capstan::training
