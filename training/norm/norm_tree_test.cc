#include "training/norm/norm_tree.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::training {

void PrintTo(const BlockSquares& squares, std::ostream* out) {
  *out << "[" << squares.block.first_chunk << ",+" << squares.block.chunk_count
       << "): " << squares.square_sum;
}

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(SquareSumTest, AddsSquaresInDouble) {
  EXPECT_EQ(SquareSum({}), 0);
  EXPECT_EQ(SquareSum({3}), 9);
  EXPECT_EQ(SquareSum({3, -4}), 25);
  // Not a float: 1 + 2^-40.
  EXPECT_EQ(SquareSum({1, std::ldexp(1.0f, -20)}), 1 + std::ldexp(1.0, -40));
  const float most = std::numeric_limits<float>::max();
  EXPECT_EQ(SquareSum({most, most}), 2 * (double{most} * double{most}));
}

TEST(SquareSumTest, HasSixteenPartialSums) {
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (const size_t n : {1, 15, 16, 17, 47, 48, 1000}) {
    std::vector<float> values(n);
    for (float& value : values) value = uniform(random);
    double sums[16] = {};
    for (size_t i = 0; i < n; ++i) sums[i % 16] += double{values[i]} * double{values[i]};
    double eight[8];
    for (int i = 0; i < 8; ++i) eight[i] = sums[i] + sums[i + 8];
    double four[4];
    for (int i = 0; i < 4; ++i) four[i] = eight[i] + eight[i + 4];
    EXPECT_EQ(SquareSum(values), (four[0] + four[2]) + (four[1] + four[3])) << n;
  }
}

TEST(SquareSumTest, IsFiniteIfAndOnlyIfAllNumbersAre) {
  std::vector<float> values(100, std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(SquareSum(values)));
  for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
    for (const size_t at : {0, 31, 99}) {
      values[at] = bad;
      EXPECT_FALSE(std::isfinite(SquareSum(values))) << bad << " at " << at;
      values[at] = 1;
    }
  }
}

TEST(NormTreeTest, ARunIsTheFewestBlocks) {
  const NormTree tree(7);
  const std::vector<double> ones(7, 1);
  EXPECT_THAT(tree.Blocks(0, ones), ElementsAre(BlockSquares{{0, 8}, 7}));
  EXPECT_THAT(
      tree.Blocks(1, absl::MakeSpan(ones).subspan(0, 4)),
      ElementsAre(BlockSquares{{1, 1}, 1}, BlockSquares{{2, 2}, 2}, BlockSquares{{4, 1}, 1}));
  // Chunk 6 has no sibling, so it is its own parent.
  EXPECT_THAT(tree.Blocks(5, absl::MakeSpan(ones).subspan(0, 2)),
              ElementsAre(BlockSquares{{5, 1}, 1}, BlockSquares{{6, 2}, 1}));
  EXPECT_THAT(tree.Blocks(0, {}), IsEmpty());
}

TEST(NormTreeTest, ChunksBehindTheTreeAreLeftOut) {
  const NormTree tree(3);
  EXPECT_THAT(tree.Blocks(2, {4, 100, 100}), ElementsAre(BlockSquares{{2, 2}, 4}));
  EXPECT_THAT(tree.Blocks(3, {100}), IsEmpty());
}

TEST(NormTreeTest, TheTotalDoesNotDependOnTheRuns) {
  std::mt19937 random(11);
  std::uniform_int_distribution<int> exponent(-40, 40);
  for (const int32_t chunks : {1, 2, 3, 5, 8, 21, 64, 100}) {
    const NormTree tree(chunks);
    std::vector<double> sums(chunks);
    for (double& sum : sums) sum = std::ldexp(1.0 / 3, exponent(random));
    const absl::StatusOr<double> want = tree.Total(tree.Blocks(0, sums));
    ASSERT_TRUE(want.ok()) << want.status();
    EXPECT_NEAR(*want, std::accumulate(sums.begin(), sums.end(), 0.0), *want * 1e-12);
    for (int32_t first = 0; first <= chunks; ++first) {
      for (int32_t second = first; second <= chunks; ++second) {
        std::vector<BlockSquares> all;  // the last run comes first
        for (const auto& [from, to] :
             {std::pair{second, chunks}, std::pair{0, first}, std::pair{first, second}}) {
          const auto run = tree.Blocks(from, absl::MakeSpan(sums).subspan(from, to - from));
          EXPECT_TRUE(tree.Check(run).ok());
          all.insert(all.end(), run.begin(), run.end());
        }
        const absl::StatusOr<double> total = tree.Total(all);
        ASSERT_TRUE(total.ok()) << total.status();
        EXPECT_EQ(*total, *want) << chunks << ": " << first << ", " << second;
      }
    }
  }
}

// 1 + a is 1, and a + a counts.
TEST(NormTreeTest, AddsLeftAndRight) {
  const double a = std::ldexp(1.0, -53);
  const NormTree tree(4);
  const double pairs = (1 + a) + (a + a);
  const double one_by_one = ((1 + a) + a) + a;
  ASSERT_NE(pairs, one_by_one);
  EXPECT_EQ(*tree.Total(tree.Blocks(0, {1, a, a, a})), pairs);
}

TEST(NormTreeTest, RefusesWhatIsNoPartOfTheTree) {
  const NormTree tree(5);
  const auto check = [&](const std::vector<BlockSquares>& blocks) {
    return std::string(tree.Check(blocks).message());
  };
  EXPECT_EQ(check({{{0, 4}, 1}, {{4, 4}, 1}}), "");
  EXPECT_THAT(check({{{0, 3}, 1}}),
              HasSubstr("chunks [0,+3): want an aligned block from 0 on, of 5"));
  EXPECT_THAT(check({{{1, 2}, 1}}), HasSubstr("[1,+2)"));
  EXPECT_THAT(check({{{0, 16}, 1}}), HasSubstr("[0,+16)"));
  EXPECT_THAT(check({{{-2, 2}, 1}}), HasSubstr("[-2,+2)"));
  EXPECT_THAT(check({{{0, 0}, 1}}), HasSubstr("[0,+0)"));
  EXPECT_THAT(check({{{5, 1}, 1}}), HasSubstr("[5,+1)"));
  EXPECT_THAT(check({{{0, 2}, 1}, {{1, 1}, 1}}),
              HasSubstr("chunks [1,+1): want an aligned block from 2 on"));
  EXPECT_THAT(check({{{2, 1}, 1}, {{0, 1}, 1}}), HasSubstr("chunks [0,+1)"));
  EXPECT_THAT(check({{{0, 1}, -1}}), HasSubstr("got -1, want 0.."));
  EXPECT_THAT(check({{{0, 1}, std::nan("")}}), HasSubstr("got nan"));
  EXPECT_THAT(check({{{0, 1}, std::numeric_limits<double>::infinity()}}), HasSubstr("got inf"));
  EXPECT_THAT(check({{{0, 1}, 1e300}}), HasSubstr("got 1e+300"));
}

TEST(NormTreeTest, ATotalNeedsEveryChunkOnce) {
  const NormTree tree(5);
  const auto total = [&](std::vector<BlockSquares> blocks) {
    return std::string(tree.Total(std::move(blocks)).status().message());
  };
  EXPECT_EQ(total({{{4, 1}, 1}, {{0, 4}, 1}}), "");
  EXPECT_EQ(total({}), "square sums: chunk 0 of 5 has none");
  EXPECT_EQ(total({{{0, 2}, 1}, {{3, 1}, 1}, {{4, 1}, 1}}), "square sums: chunk 2 of 5 has none");
  EXPECT_EQ(total({{{0, 4}, 1}}), "square sums: chunk 4 of 5 has none");
  EXPECT_THAT(total({{{0, 4}, 1}, {{4, 1}, 1}, {{4, 1}, 1}}), HasSubstr("from 5 on"));
}

class ReportRootsTest : public testing::Test {
 protected:
  // 40 floats of weights in chunks of 16, and a statistic in a chunk of its own.
  const FlatLayout layout_ = *FlatLayout::Create(
      {{.name = "w", .shape = {40}, .fan_in = 1, .fan_out = 1},
       {.name = "mean", .shape = {2}, .kind = TensorKind::kStat, .init = TensorInit::kZeros}},
      /*chunk_floats=*/16);
  std::vector<float> sums_ = std::vector<float>(layout_.total_floats(), 0.0f);

  RootReport Report(const ChunkRun& run, const NormTree* norms) {
    return ReportRoots(layout_, run, norms, [&](int32_t i) {
      const FlatRange range = layout_.ChunkRange(run.first_chunk + i);
      return absl::MakeConstSpan(sums_).subspan(range.offset, range.size);
    });
  }
};

TEST_F(ReportRootsTest, HasSquareSumsOfWeightsAlone) {
  ASSERT_EQ(layout_.chunk_count(), 4);
  const NormTree norms(layout_);
  EXPECT_EQ(norms.chunk_count(), 3);
  sums_[0] = 3;
  sums_[17] = 4;
  sums_[39] = 12;
  sums_[layout_.statistics_begin()] = 1000;
  EXPECT_EQ(Report({0, 4}, &norms), (RootReport{true, {{{0, 4}, 169}}}));
  EXPECT_EQ(Report({1, 3}, &norms), (RootReport{true, {{{1, 1}, 16}, {{2, 2}, 144}}}));
  EXPECT_EQ(Report({3, 1}, &norms), (RootReport{true, {}}));
  EXPECT_EQ(Report({0, 4}, nullptr), (RootReport{true, {}}));
}

TEST_F(ReportRootsTest, SeesInfinitiesInWeightsAndStatistics) {
  const NormTree norms(layout_);
  for (const int64_t at : {int64_t{0}, int64_t{39}, layout_.statistics_begin() + 1}) {
    sums_[at] = kInfinity;
    for (const NormTree* tree : {&norms, static_cast<const NormTree*>(nullptr)}) {
      EXPECT_EQ(Report({0, 4}, tree), (RootReport{false, {}})) << at;
    }
    sums_[at] = 0;
  }
}

}  // namespace
}  // namespace capstan::training
