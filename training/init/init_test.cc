#include "training/init/init.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::training {
namespace {

// fc1 [200, 300], index 0; fc1.bias, index 1; bn.weight (ones), 2; fc2 [10, 200], 3.
FlatLayout Layout() {
  return *FlatLayout::Create(
      {{.name = "fc1.weight", .shape = {200, 300}, .fan_in = 300, .fan_out = 200},
       {.name = "fc1.bias", .shape = {200}, .init = TensorInit::kZeros},
       {.name = "bn.weight", .shape = {200}, .init = TensorInit::kOnes},
       {.name = "fc2.weight", .shape = {10, 200}, .fan_in = 200, .fan_out = 10}});
}

std::vector<float> Whole(const FlatLayout& layout, const InitOptions& options, uint64_t seed) {
  std::vector<float> flat(layout.total_floats(), -9.0f);
  InitRange(layout, options, seed, 0, absl::MakeSpan(flat));
  return flat;
}

std::vector<float> Tensor(const FlatLayout& layout, const std::vector<float>& flat,
                          absl::string_view name) {
  const FlatRange range = layout.Find(name)->range();
  return std::vector<float>(flat.begin() + range.offset, flat.begin() + range.end());
}

struct Moments {
  double mean = 0, variance = 0, largest = 0;
};

Moments MomentsOf(const std::vector<float>& values) {
  Moments m;
  for (const double v : values) m.mean += v / values.size();
  for (const double v : values) m.variance += (v - m.mean) * (v - m.mean) / values.size();
  for (const double v : values) m.largest = std::max(m.largest, std::abs(v));
  return m;
}

constexpr double kElements = 60000;  // of fc1.weight; bounds below are five standard errors

TEST(InitTest, XavierIsUniformWithinItsBound) {
  const FlatLayout layout = Layout();
  const Moments m =
      MomentsOf(Tensor(layout, Whole(layout, {Initializer::kXavier}, 1), "fc1.weight"));
  const double bound = std::sqrt(6.0 / 500.0);
  const double variance = bound * bound / 3;
  EXPECT_LE(m.largest, static_cast<float>(bound));
  EXPECT_GT(m.largest, 0.999 * bound);
  EXPECT_NEAR(m.mean, 0, 5 * std::sqrt(variance / kElements));
  EXPECT_NEAR(m.variance / variance, 1, 5 * std::sqrt(0.8 / kElements));
}

TEST(InitTest, HeAndNormalHaveTheirDeviation) {
  const FlatLayout layout = Layout();
  for (const auto& [options, deviation] :
       {std::pair<InitOptions, double>{{Initializer::kHe}, std::sqrt(2.0 / 300.0)},
        {{Initializer::kNormal, 0.01}, 0.01}}) {
    const Moments m = MomentsOf(Tensor(layout, Whole(layout, options, 2), "fc1.weight"));
    EXPECT_NEAR(m.mean / deviation, 0, 5 / std::sqrt(kElements));
    EXPECT_NEAR(m.variance / (deviation * deviation), 1, 5 * std::sqrt(2.0 / kElements));
    EXPECT_GT(m.largest, 3.5 * deviation);
  }
}

// From a second implementation, in Python: seed 42.
TEST(InitTest, ValuesNeverChange) {
  const FlatLayout layout = Layout();
  const std::vector<float> normal =
      Tensor(layout, Whole(layout, {Initializer::kNormal, 0.5}, 42), "fc1.weight");
  EXPECT_FLOAT_EQ(normal[0], 0.5 * -0.41312826981750106);
  EXPECT_FLOAT_EQ(normal[1], 0.5 * -0.189471481386444);
  EXPECT_FLOAT_EQ(normal[2], 0.5 * -1.190140039440863);

  // A tensor of index 2, so three in forward order.
  const FlatLayout three =
      *FlatLayout::Create({{.name = "a", .shape = {1}, .fan_in = 1, .fan_out = 1},
                           {.name = "b", .shape = {1}, .fan_in = 1, .fan_out = 1},
                           {.name = "c", .shape = {6}, .fan_in = 1, .fan_out = 1}});
  std::vector<float> want;
  for (const double bits : {8164813, 14833336, 12752441, 260273, 136333, 10369030}) {
    want.push_back(static_cast<float>(2 * bits / 16777216 - 1));
  }
  EXPECT_EQ(Tensor(three, Whole(three, {Initializer::kUniform, 1.0}, 42), "c"), want);
}

TEST(InitTest, BiasesAreZeroScalesOnePaddingZero) {
  const FlatLayout layout = Layout();
  const std::vector<float> flat = Whole(layout, {Initializer::kNormal, 1.0}, 3);
  EXPECT_THAT(Tensor(layout, flat, "fc1.bias"), testing::Each(0.0f));
  EXPECT_THAT(Tensor(layout, flat, "bn.weight"), testing::Each(1.0f));
  std::vector<float> rest = flat;
  for (const TensorSlot& slot : layout.slots()) {
    std::fill_n(rest.begin() + slot.offset, slot.size, 0.0f);
  }
  EXPECT_THAT(rest, testing::Each(0.0f));
  EXPECT_THAT(Tensor(layout, Whole(layout, {Initializer::kZeros}, 3), "fc1.weight"),
              testing::Each(0.0f));
}

TEST(InitTest, AnyRangeEqualsItsPartOfTheWhole) {
  const FlatLayout layout = Layout();
  for (const InitOptions& options :
       {InitOptions{Initializer::kXavier}, InitOptions{Initializer::kHe}}) {
    const std::vector<float> whole = Whole(layout, options, 4);
    std::vector<float> pieces(whole.size(), -9.0f);
    // Odd cuts, so that blocks of random numbers are cut too.
    int64_t first = 0;
    for (int64_t size = 1; first < layout.total_floats(); size = size * 3 % 1009 + 1) {
      size = std::min(size, layout.total_floats() - first);
      InitRange(layout, options, 4, first, absl::MakeSpan(pieces).subspan(first, size));
      first += size;
    }
    EXPECT_EQ(pieces, whole);
    for (int32_t chunk = 0; chunk < layout.chunk_count(); ++chunk) {
      const FlatRange range = layout.ChunkRange(chunk);
      std::vector<float> part(range.size);
      InitRange(layout, options, 4, range.offset, absl::MakeSpan(part));
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + range.offset));
    }
  }
}

TEST(InitTest, SeedsAndTensorsDiffer) {
  const FlatLayout layout = Layout();
  const InitOptions options{Initializer::kUniform, 1.0};
  const std::vector<float> one = Whole(layout, options, 1);
  EXPECT_NE(one, Whole(layout, options, 2));
  EXPECT_EQ(one, Whole(layout, options, 1));
  EXPECT_NE(Tensor(layout, one, "fc1.weight")[0], Tensor(layout, one, "fc2.weight")[0]);
}

TEST(InitTest, RefusesScalesOutOfRange) {
  EXPECT_TRUE(ValidateInitOptions({Initializer::kXavier, 0}).ok());
  EXPECT_TRUE(ValidateInitOptions({Initializer::kNormal, 0.01}).ok());
  EXPECT_TRUE(ValidateInitOptions({Initializer::kUniform, 0.07}).ok());
  for (const double scale : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    EXPECT_FALSE(ValidateInitOptions({Initializer::kNormal, scale}).ok());
    EXPECT_FALSE(ValidateInitOptions({Initializer::kUniform, scale}).ok());
  }
}

}  // namespace
}  // namespace capstan::training
