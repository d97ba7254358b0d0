#include "training/norm/tensor_norms.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::training {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// By offset: fc.weight [0, 100), fc.bias [112, 115), conv.weight [128, 158), a statistic [192, 196).
// Chunks of 64 floats.
FlatLayout ThreeTensors() {
  return *FlatLayout::Create({{.name = "conv.weight", .shape = {30}, .fan_in = 1, .fan_out = 1},
                              {.name = "bn.running_mean",
                               .shape = {4},
                               .kind = TensorKind::kStat,
                               .init = TensorInit::kZeros},
                              {.name = "fc.weight", .shape = {100}, .fan_in = 1, .fan_out = 1},
                              {.name = "fc.bias", .shape = {3}, .init = TensorInit::kZeros}},
                             /*chunk_floats=*/64);
}

std::vector<std::string> Names(absl::Span<const TensorPiece> pieces) {
  std::vector<std::string> names;
  for (const TensorPiece& piece : pieces) {
    names.push_back(std::to_string(piece.chunk) + "/" + std::to_string(piece.tensor) + " " +
                    std::to_string(piece.range.offset) + "+" + std::to_string(piece.range.size));
  }
  return names;
}

TEST(TensorPiecesTest, ChunksCutTensorsAndPaddingIsLeftOut) {
  const FlatLayout layout = ThreeTensors();
  const TensorPieces pieces(layout);
  EXPECT_EQ(pieces.tensor_count(), 3);
  ASSERT_EQ(layout.chunk_count(), 4);
  EXPECT_THAT(Names(pieces.Of({0, 4})),
              ElementsAre("0/0 0+64", "1/0 64+36", "1/1 112+3", "2/2 128+30"));
  EXPECT_THAT(Names(pieces.Of({1, 1})), ElementsAre("1/0 64+36", "1/1 112+3"));
  EXPECT_THAT(Names(pieces.Of({2, 2})), ElementsAre("2/2 128+30"));
  EXPECT_TRUE(pieces.Of({3, 1}).empty());
}

TEST(TensorPiecesTest, PiecesInAnyOrderBecomeTheNormsOfTensors) {
  const TensorPieces pieces(ThreeTensors());
  const std::vector<TensorNorms> want = {{5, 3}, {0, 1}, {2, 0.5}};
  std::vector<PieceSquares> squares = {{0, 0, 9, 4}, {1, 0, 16, 5}, {1, 1, 0, 1}, {2, 2, 4, 0.25}};
  EXPECT_EQ(*pieces.Norms(squares), want);
  std::reverse(squares.begin(), squares.end());
  EXPECT_EQ(*pieces.Norms(squares), want);
}

// In double, the sum of 1 and four times 2^-53 depends on the order.
TEST(TensorPiecesTest, PiecesAreAddedInTheOrderOfTheirChunks) {
  const FlatLayout layout = *FlatLayout::Create(
      {{.name = "fc.weight", .shape = {80}, .fan_in = 1, .fan_out = 1}}, /*chunk_floats=*/16);
  const TensorPieces pieces(layout);
  const double small = 0x1p-53;
  EXPECT_EQ(pieces.Norms({{0, 0, small}, {1, 0, small}, {2, 0, small}, {3, 0, small}, {4, 0, 1}})
                ->at(0)
                .weights,
            1 + 0x1p-52);
  EXPECT_EQ(pieces.Norms({{4, 0, small}, {3, 0, small}, {2, 0, small}, {1, 0, small}, {0, 0, 1}})
                ->at(0)
                .weights,
            1);
}

TEST(TensorPiecesTest, RefusesWhatAreNotThePiecesOfTheLayout) {
  const TensorPieces pieces(ThreeTensors());
  const auto error = [&](const std::vector<PieceSquares>& squares) {
    return std::string(pieces.Check(squares).message());
  };
  EXPECT_EQ(error({}), "");
  EXPECT_EQ(error({{1, 0, 1, 1}, {2, 2, 1, 1}}), "");
  EXPECT_THAT(error({{1, 2, 1, 1}}), HasSubstr("chunk 1, tensor 2: no such piece"));
  EXPECT_THAT(error({{3, 3, 1, 1}}), HasSubstr("chunk 3, tensor 3: no such piece"));
  EXPECT_THAT(error({{-1, 0, 1, 1}}), HasSubstr("chunk -1, tensor 0: no such piece"));
  EXPECT_THAT(error({{1, 1, 1, 1}, {1, 0, 1, 1}}), HasSubstr("chunk 1, tensor 0: no such piece"));
  EXPECT_THAT(error({{1, 1, 1, 1}, {1, 1, 1, 1}}), HasSubstr("chunk 1, tensor 1: no such piece"));
  EXPECT_THAT(error({{0, 0, -1, 1}}), HasSubstr("got -1 and 1, want sums from 0 on"));
  EXPECT_THAT(error({{0, 0, 1, -2}}), HasSubstr("got 1 and -2, want sums from 0 on"));
  // Weights that are no longer finite are found by the loss.
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_EQ(error({{0, 0, infinite, std::nan("")}}), "");
}

TEST(TensorPiecesTest, NamesThePieceThatIsMissing) {
  const TensorPieces pieces(ThreeTensors());
  const auto error = [&](std::vector<PieceSquares> squares) {
    return std::string(pieces.Norms(std::move(squares)).status().message());
  };
  EXPECT_EQ(error({}), "tensor squares: chunk 0, tensor 0 has none");
  EXPECT_EQ(error({{0, 0, 1, 1}, {1, 0, 1, 1}, {2, 2, 1, 1}}),
            "tensor squares: chunk 1, tensor 1 has none");
  EXPECT_EQ(error({{0, 0, 1, 1}, {1, 0, 1, 1}, {1, 1, 1, 1}}),
            "tensor squares: chunk 2, tensor 2 has none");
  EXPECT_THAT(error({{0, 0, 1, 1}, {0, 0, 1, 1}}), HasSubstr("no such piece"));
}

}  // namespace
}  // namespace capstan::training
