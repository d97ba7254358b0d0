// 2bit and 1bit.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/compress/gradient_format.h"
#include "training/compress/test_gradients.h"

namespace capstan::training {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsNan;

const GradientFormat kTwo = {.encoding = GradientEncoding::kTwoBit, .threshold = 0.5};
const GradientFormat kOne = {.encoding = GradientEncoding::kOneBit};

// By hand. Numbers that reach the threshold exactly are sent.
TEST(TwoBitTest, SendsWhatReachesTheThresholdAndKeepsTheRest) {
  const std::vector<float> gradient = {0.25f, 0.5f, -0.5f, 2, -0.375f};
  FeedbackStep step = StepOf(kTwo, gradient, {0, 0, 0, 0, 0});
  // Codes 0, 1, 2, 1, 0 from the lowest bits on.
  EXPECT_THAT(BitsOf(step.encoded), ElementsAre(0x3F000000, 0b00'01'10'01'00));
  EXPECT_THAT(step.decoded, ElementsAre(0, 0.5f, -0.5f, 0.5f, 0));
  EXPECT_THAT(step.residual, ElementsAre(0.25f, 0, 0, 1.5f, -0.375f));

  step = StepOf(kTwo, {0.25f, -0.25f, 0.25f, 0, -0.375f}, step.residual);
  EXPECT_THAT(step.decoded, ElementsAre(0.5f, 0, 0, 0.5f, -0.5f));
  EXPECT_THAT(step.residual, ElementsAre(0, -0.25f, 0.25f, 1, -0.25f));

  step = StepOf(kTwo, {0, -0.5f, -1, -4, 0.125f}, step.residual);
  EXPECT_THAT(step.decoded, ElementsAre(0, -0.5f, -0.5f, -0.5f, 0));
  EXPECT_THAT(step.residual, ElementsAre(0, -0.25f, -0.25f, -2.5f, -0.125f));
}

// The gradient was divided by the samples, so the threshold is too.
TEST(TwoBitTest, TheThresholdIsThatOfTheSumOverTheSamples) {
  const FeedbackArgs args = {.loss_scale = 1, .samples = 4};
  const FeedbackStep step = StepOf(kTwo, {0.125f, 0.0625f, -0.25f}, {0, 0, 0}, args);
  EXPECT_THAT(step.decoded, ElementsAre(0.125f, 0, -0.125f));
  EXPECT_THAT(step.residual, ElementsAre(0, 0.0625f, -0.125f));
  // Rounded to a float once: 0.5 / 3.
  EXPECT_EQ(StepOf(kTwo, {1}, {0}, {.samples = 3}).decoded[0], static_cast<float>(0.5 / 3));
}

TEST(TwoBitTest, TheLossScaleIsInTheHeaderAlone) {
  const FeedbackArgs args = {.loss_scale = 8, .samples = 1};
  const FeedbackStep step = StepOf(kTwo, {8, 2}, {0.25f, 0.125f}, args);
  EXPECT_THAT(BitsOf(step.encoded), ElementsAre(0x40800000, 0b00'01));
  EXPECT_THAT(step.decoded, ElementsAre(4, 0));
  EXPECT_THAT(step.residual, ElementsAre(0.75f, 0.375f));
}

TEST(TwoBitTest, HasSixteenNumbersInAWord) {
  std::vector<float> gradient(17, 0.0f);
  gradient[0] = -1;
  gradient[15] = 1;
  gradient[16] = -1;
  const FeedbackStep step = StepOf(kTwo, gradient, std::vector<float>(17, 0.0f));
  EXPECT_THAT(BitsOf(step.encoded), ElementsAre(0x3F000000, 0x40000002, 0x00000002));
  EXPECT_EQ(step.decoded[0], -0.5f);
  EXPECT_EQ(step.decoded[15], 0.5f);
  EXPECT_EQ(step.decoded[16], -0.5f);
}

// No encoder sends 3. Codes behind the last number are not read.
TEST(TwoBitTest, TheCodeThreeIsNan) {
  const std::vector<float> decoded = Decoded(kTwo, WordsOf({0x3F000000, 0xFFFFFFE4}), 4);
  EXPECT_THAT(decoded, ElementsAre(0, 0.5f, -0.5f, IsNan()));
  EXPECT_THAT(Decoded(kTwo, WordsOf({0x3F000000, 0xFFFFFFE4}), 3), ElementsAre(0, 0.5f, -0.5f));
}

TEST(TwoBitTest, ABadNumberMakesAllOfTheChunkNan) {
  std::vector<float> gradient(40, 1.0f);
  gradient[39] = -std::numeric_limits<float>::infinity();
  const std::vector<float> residual = RandomGradient(40, 2);
  const FeedbackStep step = StepOf(kTwo, gradient, residual);
  EXPECT_THAT(step.decoded, Each(IsNan()));
  EXPECT_EQ(step.residual, residual);
}

// The threshold of so many samples is below the least float.
TEST(TwoBitTest, AThresholdOfZeroSendsZeros) {
  const GradientFormat tiny = {.encoding = GradientEncoding::kTwoBit, .threshold = 1e-20};
  const FeedbackStep step = StepOf(tiny, {0, 1, -1}, {0, 0, 0}, {.samples = 1e30});
  EXPECT_THAT(step.decoded, ElementsAre(0, 0, 0));
  EXPECT_THAT(step.residual, ElementsAre(0, 1, -1));
}

// By hand. Magnitudes 1 + 3 + 0 + 4 = 8, mean 2.
TEST(OneBitTest, SendsTheSignsAndTheMeanMagnitude) {
  FeedbackStep step = StepOf(kOne, {1, -3, 0, -4}, {0, 0, 0, 0});
  EXPECT_THAT(BitsOf(step.encoded), ElementsAre(0x40000000, 0b1010));
  EXPECT_THAT(step.decoded, ElementsAre(2, -2, 2, -2));
  EXPECT_THAT(step.residual, ElementsAre(-1, -1, -2, -2));

  // r = -0.5, -1, -0.5, 2
  step = StepOf(kOne, {0.5f, 0, 1.5f, 4}, step.residual);
  EXPECT_THAT(step.decoded, ElementsAre(-1, -1, -1, 1));
  EXPECT_THAT(step.residual, ElementsAre(0.5f, 0, 0.5f, 1));
}

TEST(OneBitTest, TheLossScaleIsInTheHeaderAlone) {
  const FeedbackStep step = StepOf(kOne, {8, -24}, {0.5f, 0.5f}, {.loss_scale = 8});
  EXPECT_THAT(step.decoded, ElementsAre(16, -16));  // r = 1.5, -2.5
  EXPECT_THAT(step.residual, ElementsAre(-0.5f, -0.5f));
}

TEST(OneBitTest, HasThirtyTwoNumbersInAWord) {
  std::vector<float> gradient(33, 1.0f);
  gradient[0] = -1;
  gradient[31] = -1;
  gradient[32] = -1;
  const FeedbackStep step = StepOf(kOne, gradient, std::vector<float>(33, 0.0f));
  EXPECT_THAT(BitsOf(step.encoded), ElementsAre(0x3F800000, 0x80000001, 0x00000001));
  EXPECT_EQ(step.decoded, gradient);
  // Bits behind the last number are not read.
  EXPECT_THAT(Decoded(kOne, WordsOf({0x3F800000, 0xFFFFFFFD}), 2), ElementsAre(-1, 1));
}

// A block of 256 numbers, one of 256 and one of 44.
TEST(OneBitTest, EachBlockHasAMeanOfItsOwn) {
  std::vector<float> gradient(556, 1.0f);
  std::fill(gradient.begin() + 256, gradient.end(), 0.25f);
  std::fill(gradient.begin() + 512, gradient.end(), -8.0f);
  const FeedbackStep step = StepOf(kOne, gradient, std::vector<float>(556, 0.0f));
  ASSERT_EQ(step.encoded.size(), 9 + 9 + 3);
  EXPECT_EQ(step.encoded[0], 1);
  EXPECT_EQ(step.encoded[9], 0.25f);
  EXPECT_EQ(step.encoded[18], 8);
  EXPECT_EQ(step.decoded, gradient);
  EXPECT_THAT(step.residual, Each(0.0f));
}

TEST(OneBitTest, PaddingDoesNotCountInTheMean) {
  const std::vector<FlatRange> inside = {{1, 2}};
  FeedbackArgs args{.padding = inside};
  EXPECT_EQ(StepOf(kOne, {2, 0, 0, -4}, {0, 0, 0, 0}, args).encoded[0], 3);

  // Over the border of two blocks, and all of the third.
  std::vector<float> gradient(600, 2.0f);
  const std::vector<FlatRange> gaps = {{250, 12}, {300, 10}, {512, 88}};
  args.padding = gaps;
  for (const FlatRange& gap : gaps) std::fill_n(gradient.begin() + gap.offset, gap.size, 0.0f);
  const FeedbackStep step = StepOf(kOne, gradient, std::vector<float>(600, 0.0f), args);
  EXPECT_EQ(step.encoded[0], 2);
  EXPECT_EQ(step.encoded[9], 2);
  EXPECT_EQ(step.encoded[18], 0);
  EXPECT_EQ(step.decoded[599], 0);
}

// 2^53 + 2^29 lies in the middle of two floats, and the even one is 2^53. Next to 2^53, each 1 is
// lost; two of them that were added first are not, and then the upper float is nearer.
TEST(OneBitTest, TheMeanHasSixteenPartialSums) {
  const auto mean = [](size_t floats, size_t one, size_t other) {
    std::vector<float> gradient(floats, 0.0f);
    gradient[0] = 0x1p53f;
    gradient[1] = 0x1p29f;
    gradient[one] = 1;
    gradient[other] = -1;
    return StepOf(kOne, gradient, std::vector<float>(floats, 0.0f)).encoded[0];
  };
  const float upper = std::nextafter(0x1p53f, kInf);
  EXPECT_EQ(mean(32, 8, 24), upper / 32);     // both in the 8th sum
  EXPECT_EQ(mean(64, 16, 48), 0x1p53f / 64);  // both in that of 2^53

  for (const size_t floats : {1, 15, 16, 31, 33, 255, 256}) {
    const std::vector<float> random = RandomGradient(floats, 4);
    double sums[16] = {};
    for (size_t i = 0; i < floats; ++i) sums[i % 16] += std::fabs(random[i]);
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    EXPECT_EQ(StepOf(kOne, random, std::vector<float>(floats, 0.0f)).encoded[0],
              static_cast<float>(sums[0] / static_cast<double>(floats)))
        << floats;
  }
}

TEST(OneBitTest, AMeanBelowTheLeastFloatSendsZeros) {
  std::vector<float> gradient(40, 0.0f);
  gradient[3] = -std::numeric_limits<float>::denorm_min();
  const FeedbackStep step = StepOf(kOne, gradient, std::vector<float>(40, 0.0f));
  EXPECT_THAT(step.decoded, Each(0.0f));
  EXPECT_EQ(step.residual, gradient);
}

TEST(OneBitTest, ABadNumberMakesAllOfTheChunkNan) {
  std::vector<float> gradient(40, 1.0f);
  gradient[39] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> residual = RandomGradient(40, 2);
  const FeedbackStep step = StepOf(kOne, gradient, residual);
  EXPECT_THAT(step.decoded, Each(IsNan()));
  EXPECT_EQ(step.residual, residual);
}

}  // namespace
}  // namespace capstan::training
