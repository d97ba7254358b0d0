#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/compress/gradient_format.h"
#include "training/compress/test_gradients.h"

namespace capstan::training {
namespace {

using testing::ElementsAre;

GradientFormat TopK(double ratio) { return {.encoding = GradientEncoding::kTopK, .ratio = ratio}; }

// The indices that are sent.
std::vector<uint32_t> Sent(double ratio, const std::vector<float>& gradient) {
  const FeedbackStep step =
      StepOf(TopK(ratio), gradient, std::vector<float>(gradient.size(), 0.0f));
  std::vector<uint32_t> indices = BitsOf(step.encoded);
  indices.resize(indices.size() / 2);
  return indices;
}

// By hand: 2 of 5.
TEST(TopKTest, SendsTheLargestMagnitudesAndKeepsTheRest) {
  FeedbackStep step = StepOf(TopK(0.4), {1, -5, 0.5f, 3, -2}, {0, 0, 0, 0, 0});
  EXPECT_THAT(BitsOf(step.encoded), ElementsAre(1u, 3u, 0xC0A00000, 0x40400000));
  EXPECT_THAT(step.decoded, ElementsAre(0, -5, 0, 3, 0));
  EXPECT_THAT(step.residual, ElementsAre(1, 0, 0.5f, 0, -2));

  // r = 1.5, 1, 0.5, -1, -4
  step = StepOf(TopK(0.4), {0.5f, 1, 0, -1, -2}, step.residual);
  EXPECT_THAT(step.decoded, ElementsAre(1.5f, 0, 0, 0, -4));
  EXPECT_THAT(step.residual, ElementsAre(0, 1, 0.5f, -1, 0));
}

TEST(TopKTest, TheLossScaleIsInTheValuesAlone) {
  const FeedbackStep step = StepOf(TopK(0.5), {8, 16}, {0.5f, 0.5f}, {.loss_scale = 8});
  EXPECT_THAT(step.decoded, ElementsAre(0, 20));
  EXPECT_THAT(step.residual, ElementsAre(1.5f, 0));
}

TEST(TopKTest, OfEqualMagnitudesTheLowerIndicesGoFirst) {
  EXPECT_THAT(Sent(0.4, {1, -1, 1, -1, 1}), ElementsAre(0, 1));
  EXPECT_THAT(Sent(0.4, {1, -2, 1, 2, 2}), ElementsAre(1, 3));
  EXPECT_THAT(Sent(0.6, {1, -2, 1, 2, 1}), ElementsAre(0, 1, 3));
  EXPECT_THAT(Sent(0.4, {0, 0, -0.0f, 0, 0}), ElementsAre(0, 1));
}

TEST(TopKTest, SelectsAsAStableSortDoes) {
  for (const size_t floats : {1, 2, 40, 257, 3000}) {
    for (const double ratio : {0.001, 0.01, 0.3, 0.99, 1.0}) {
      for (const float coarse : {0.0f, 64.0f, 1.0f}) {
        std::vector<float> gradient = RandomGradient(floats, 3);
        if (coarse > 0) {  // many equal numbers
          for (float& value : gradient) value = std::round(value * coarse);
        }
        std::vector<uint32_t> want(floats);
        std::iota(want.begin(), want.end(), 0);
        std::stable_sort(want.begin(), want.end(), [&](uint32_t a, uint32_t b) {
          return std::fabs(gradient[a]) > std::fabs(gradient[b]);
        });
        want.resize(EncodedWords(TopK(ratio), static_cast<int64_t>(floats)) / 2);
        std::sort(want.begin(), want.end());
        EXPECT_EQ(Sent(ratio, gradient), want) << floats << " " << ratio << " " << coarse;
      }
    }
  }
}

// Neighbours in the order of floats, down to the last bit and below the least normal one.
TEST(TopKTest, TellsApartTheClosestMagnitudes) {
  const float least = std::numeric_limits<float>::denorm_min();
  EXPECT_THAT(Sent(0.3, {1, std::nextafter(1.0f, 2.0f), 1}), ElementsAre(1));
  EXPECT_THAT(Sent(0.3, {0, -2 * least, least}), ElementsAre(1));
  EXPECT_THAT(Sent(0.3, {0, 0, -least}), ElementsAre(2));
}

TEST(TopKTest, NanIsLargerThanInfinityAndInfinityThanAll) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(Sent(0.2, {1, kInf, -nan, -kInf, 2}), ElementsAre(2));
  EXPECT_THAT(Sent(0.4, {1, kInf, -nan, -kInf, 2}), ElementsAre(1, 2));
  EXPECT_THAT(Sent(0.2, {1, std::numeric_limits<float>::max(), 0, -kInf, 2}), ElementsAre(3));
}

TEST(TopKTest, IndicesThatDoNotRiseOrAreTooLargeAreNotWellFormed) {
  const GradientFormat format = TopK(0.3);  // 3 of 10
  const auto good = [&](uint32_t a, uint32_t b, uint32_t c) {
    return IsWellFormed(format, WordsOf({a, b, c, 0x3F800000, 0x3F800000, 0x3F800000}), 10);
  };
  EXPECT_TRUE(good(0, 1, 2));
  EXPECT_TRUE(good(0, 5, 9));
  EXPECT_FALSE(good(5, 5, 9));
  EXPECT_FALSE(good(0, 9, 9));
  EXPECT_FALSE(good(5, 4, 9));
  EXPECT_FALSE(good(0, 9, 8));
  EXPECT_FALSE(good(0, 5, 10));
  EXPECT_FALSE(good(10, 11, 12));
  EXPECT_FALSE(good(0, 5, 0x80000000));
  EXPECT_FALSE(good(0, 5, 0xFFFFFFFF));
  EXPECT_FALSE(good(0xFFFFFFFF, 0, 1));
}

// Any values are well-formed, also such that are not finite.
TEST(TopKTest, OnlyIndicesAreChecked) {
  EXPECT_TRUE(IsWellFormed(TopK(0.1), WordsOf({3, 0x7F800001}), 10));
  EXPECT_TRUE(std::isnan(Decoded(TopK(0.1), WordsOf({3, 0x7F800001}), 10)[3]));
}

}  // namespace
}  // namespace capstan::training
