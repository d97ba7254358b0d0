#include "training/compress/gradient_layout.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::training {
namespace {

using ::testing::ElementsAre;

// Three chunks of weights, of which the last 32 floats are padding, and one of running statistics.
FlatLayout Layout() {
  TensorSpec weight;
  weight.name = "fc.weight";
  weight.shape = {3040};
  weight.fan_in = weight.fan_out = 1;
  TensorSpec mean;
  mean.name = "bn.running_mean";
  mean.shape = {32};
  mean.kind = TensorKind::kStat;
  mean.init = TensorInit::kZeros;
  mean.momentum = 0.1;
  auto layout = FlatLayout::Create({weight, mean}, /*chunk_floats=*/1024);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *std::move(layout);
}

TEST(GradientLayoutTest, WithoutCompressionItIsTheFlatLayout) {
  const FlatLayout flat = Layout();
  const GradientLayout layout(flat, {});
  EXPECT_EQ(layout.total_words(), flat.total_floats());
  ASSERT_EQ(flat.chunk_count(), 4);
  for (int32_t chunk = 0; chunk < 4; ++chunk) {
    EXPECT_EQ(layout.ChunkRange(chunk), flat.ChunkRange(chunk));
    EXPECT_EQ(layout.FormatOf(chunk).encoding, GradientEncoding::kNone);
  }
  for (const int64_t bytes : {4096, 8192, 12288, 1 << 20}) {
    EXPECT_EQ(layout.FramesOf({0, 4}, bytes), FramesOf(flat, {0, 4}, bytes));
    EXPECT_EQ(layout.FramesOf({1, 2}, bytes), FramesOf(flat, {1, 2}, bytes));
  }
}

TEST(GradientLayoutTest, ChunksOfWeightsAreSmallerAndStatisticsAreNot) {
  const FlatLayout flat = Layout();
  const GradientLayout layout(flat, {.encoding = GradientEncoding::kOneBit});
  // 1024 numbers are four blocks of a float and 8 words.
  const int64_t last = EncodedWords(layout.format(), flat.ChunkRange(2).size);
  EXPECT_EQ(layout.ChunkRange(0), (FlatRange{0, 36}));
  EXPECT_EQ(layout.ChunkRange(1), (FlatRange{36, 36}));
  EXPECT_EQ(layout.ChunkRange(2), (FlatRange{72, last}));
  EXPECT_EQ(layout.ChunkRange(3), (FlatRange{72 + last, flat.ChunkRange(3).size}));
  EXPECT_EQ(layout.RangeOf({1, 2}), (FlatRange{36, 36 + last}));
  EXPECT_EQ(layout.total_words(), layout.ChunkRange(3).end());
  EXPECT_EQ(layout.FormatOf(2).encoding, GradientEncoding::kOneBit);
  EXPECT_EQ(layout.FormatOf(3).encoding, GradientEncoding::kNone);
  EXPECT_THAT(layout.FramesOf({0, 4}, 4 * 72),
              ElementsAre(ChunkRun{0, 2}, ChunkRun{2, 2}));  // 36 + 36 and at most 36 + 32 words
}

TEST(GradientLayoutTest, PaddingLiesBetweenTensorsAndBehindThem) {
  const GradientLayout behind(Layout(), {.encoding = GradientEncoding::kOneBit});
  EXPECT_THAT(behind.Padding(0), ElementsAre());
  EXPECT_THAT(behind.Padding(2), ElementsAre(FlatRange{992, 32}));

  std::vector<TensorSpec> specs;
  for (const auto& [name, size] : {std::pair("a.weight", 20), {"b.weight", 16}, {"c.bias", 3}}) {
    specs.push_back({.name = name, .shape = {size}, .fan_in = 1, .fan_out = 1});
  }
  // Later layers come first: c at 0, b at 16, a at 32.
  const FlatLayout flat = *FlatLayout::Create(specs, /*chunk_floats=*/32);
  const GradientLayout layout(flat, {.encoding = GradientEncoding::kOneBit});
  ASSERT_EQ(flat.chunk_count(), 2);
  EXPECT_THAT(layout.Padding(0), ElementsAre(FlatRange{3, 13}));
  EXPECT_THAT(layout.Padding(1), ElementsAre(FlatRange{20, 12}));

  std::vector<float> chunk(32, 1.0f);
  ClearPadding(layout.Padding(0), absl::MakeSpan(chunk));
  EXPECT_EQ(std::count(chunk.begin(), chunk.end(), 0.0f), 13);
  EXPECT_EQ(chunk[2], 1.0f);
  EXPECT_EQ(chunk[3], 0.0f);
  EXPECT_EQ(chunk[15], 0.0f);
  EXPECT_EQ(chunk[16], 1.0f);
}

TEST(GradientLayoutTest, AFrameHasNoMoreChunksThanItsHeaderHolds) {
  TensorSpec weight;
  weight.name = "fc.weight";
  weight.shape = {16 * (GradientLayout::kMaxFrameChunks + 5)};
  weight.fan_in = weight.fan_out = 1;
  const FlatLayout flat = *FlatLayout::Create({weight}, /*chunk_floats=*/16);
  const GradientLayout layout(flat, {.encoding = GradientEncoding::kTwoBit});
  EXPECT_THAT(layout.FramesOf({0, flat.chunk_count()}, 1 << 20),
              ElementsAre(ChunkRun{0, GradientLayout::kMaxFrameChunks},
                          ChunkRun{GradientLayout::kMaxFrameChunks, 5}));
}

}  // namespace
}  // namespace capstan::training
