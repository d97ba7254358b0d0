#include "gpu_worker/task/lane_encoder.h"

#include <algorithm>
#include <vector>

#include "gpu_worker/task/test_layout.h"
#include "gtest/gtest.h"

namespace capstan::gpu_worker {
namespace {

using training::GradientEncoding;
using training::GradientFormat;

class LaneEncoderTest : public testing::Test {
 protected:
  // What shards get for the first weight, if the gradient of all weights is `gradient`.
  float Send(LaneEncoder& encoder, LaneStep at, float gradient, float statistic = 0) {
    if (at.step_before < 0) at.step_before = at.step - 1;
    std::vector<float> floats(layout_.total_floats(), gradient);
    std::fill(floats.begin() + 16, floats.end(), statistic);
    const auto encoded = encoder.Encode(at, floats);
    std::vector<float> decoded(layout_.total_floats(), -77.0f);
    encoder.Decode(*encoded, absl::MakeSpan(decoded));
    EXPECT_EQ(decoded[16], statistic);
    EXPECT_EQ(decoded[31], statistic);
    return decoded[0];
  }
  float Send(LaneEncoder& encoder, int64_t step, float gradient) {
    return Send(encoder, {.step = step}, gradient);
  }
  void Skip(LaneEncoder& encoder, int64_t step, int32_t lane) {
    encoder.Skipped({.step = step, .step_before = step - 1, .lane = lane});
  }

  // A chunk of weights and one of running statistics.
  const training::FlatLayout layout_ = WithStatistics(16, 16, /*chunk_floats=*/16);
  const GradientFormat two_bit_ = {.encoding = GradientEncoding::kTwoBit, .threshold = 0.5};
};

TEST_F(LaneEncoderTest, WeightsAreRoundedAndStatisticsAreExact) {
  LaneEncoder encoder(layout_, {.encoding = GradientEncoding::kBFloat16});
  // bfloat16 has 8 bits of fraction, counting the leading one.
  const float long_fraction = 1.0f + 1.0f / 256 + 1.0f / 512;
  EXPECT_EQ(Send(encoder, {.step = 0}, long_fraction, 0.1f), 1.0078125f);
  EXPECT_EQ(Send(encoder, {.step = 1}, long_fraction, 0.1f), 1.0078125f);
  EXPECT_EQ(encoder.Encode({}, std::vector<float>(32))->size(), 8 + 16);
}

TEST_F(LaneEncoderTest, WhatWasLeftOutIsSentLater) {
  LaneEncoder encoder(layout_, two_bit_);
  EXPECT_EQ(Send(encoder, 0, 0.0f), 0.0f);
  EXPECT_EQ(Send(encoder, 1, 0.375f), 0.0f);    // 0.375 left
  EXPECT_EQ(Send(encoder, 2, 0.25f), 0.5f);     // 0.625; 0.125 left
  EXPECT_EQ(Send(encoder, 3, 0.25f), 0.0f);     // 0.375
  EXPECT_EQ(Send(encoder, 4, -1.0f), -0.5f);    // -0.625; -0.125 left
  EXPECT_EQ(Send(encoder, 5, -0.375f), -0.5f);  // -0.5
}

// Of that step, another task's copy may have counted.
TEST_F(LaneEncoderTest, TheFirstStepOfALaneLeavesNothing) {
  LaneEncoder encoder(layout_, two_bit_);
  EXPECT_EQ(Send(encoder, 7, 0.375f), 0.0f);
  EXPECT_EQ(Send(encoder, 8, 0.375f), 0.0f);
  EXPECT_EQ(Send(encoder, 9, 0.375f), 0.5f);
}

TEST_F(LaneEncoderTest, AStepThatWasNotAppliedLeavesTheResidualAsItWas) {
  LaneEncoder encoder(layout_, two_bit_);
  Send(encoder, 0, 0.0f);
  EXPECT_EQ(Send(encoder, 1, 0.375f), 0.0f);
  EXPECT_EQ(Send(encoder, 2, 0.25f), 0.5f);
  encoder.Skipped(1);  // of no step that is still in question
  encoder.Skipped(2);
  EXPECT_EQ(Send(encoder, 3, 0.0625f), 0.0f);  // 0.375 + 0.0625
  EXPECT_EQ(Send(encoder, 4, 0.0625f), 0.5f);
}

TEST_F(LaneEncoderTest, ALaneOfAnAsynchronousJobIsSkippedAlone) {
  LaneEncoder encoder(layout_, two_bit_);
  Send(encoder, {.step = 0, .lane = 0}, 0.0f);
  Send(encoder, {.step = 6, .lane = 1}, 0.0f);
  EXPECT_EQ(Send(encoder, {.step = 1, .lane = 0}, 0.375f), 0.0f);
  EXPECT_EQ(Send(encoder, {.step = 7, .lane = 1}, 0.25f), 0.0f);
  Skip(encoder, 2, 0);  // nothing of step 2 was encoded
  EXPECT_EQ(Send(encoder, {.step = 3, .lane = 0}, 0.125f), 0.5f);
  EXPECT_EQ(Send(encoder, {.step = 8, .lane = 1}, 0.125f), 0.0f);
  EXPECT_EQ(Send(encoder, {.step = 4, .lane = 0}, 0.25f), 0.0f);
  EXPECT_EQ(Send(encoder, {.step = 5, .lane = 0}, 0.5f), 0.5f);
  Skip(encoder, 5, 0);  // it was encoded, and was too large for the format
  EXPECT_EQ(Send(encoder, {.step = 6, .lane = 0}, 0.25f), 0.5f);  // 0.25 of step 4
  Skip(encoder, 3, 2);                                            // a lane that has sent nothing
}

TEST_F(LaneEncoderTest, ALaneWithoutSamplesKeepsItsResidual) {
  LaneEncoder encoder(layout_, two_bit_);
  Send(encoder, 0, 0.0f);
  EXPECT_EQ(Send(encoder, 1, 0.375f), 0.0f);
  EXPECT_EQ(Send(encoder, {.step = 5, .step_before = 1}, 0.125f), 0.5f);
}

TEST_F(LaneEncoderTest, ALaneThatWasElsewhereBeginsWithoutResidual) {
  LaneEncoder encoder(layout_, two_bit_);
  Send(encoder, 0, 0.0f);
  EXPECT_EQ(Send(encoder, 1, 0.375f), 0.0f);
  EXPECT_EQ(Send(encoder, 3, 0.375f), 0.0f);
  EXPECT_EQ(Send(encoder, 4, 0.375f), 0.0f) << "step 3 left nothing either";
  Send(encoder, {.step = 0, .lane = 1}, 0.0f);
  EXPECT_EQ(Send(encoder, {.step = 1, .lane = 1}, 0.375f), 0.0f);
  encoder.KeepLanes([](int32_t lane) { return lane == 1; });
  EXPECT_EQ(Send(encoder, {.step = 2, .lane = 1}, 0.25f), 0.5f);
  EXPECT_EQ(Send(encoder, 5, 0.375f), 0.0f);
}

TEST_F(LaneEncoderTest, TheNormSaysHowMuchIsLeftOut) {
  LaneEncoder encoder(layout_, two_bit_);
  EXPECT_EQ(encoder.Norm(), 0.0);
  Send(encoder, 0, 0.0f);
  Send(encoder, {.step = 1, .loss_scale = 1024}, 0.25f * 1024);
  EXPECT_EQ(encoder.Norm(), 1.0);  // sixteen of 0.25
  encoder.Forget();
  EXPECT_EQ(encoder.Norm(), 0.0);
  Send(encoder, 2, 0.375f);
  EXPECT_EQ(Send(encoder, 3, 0.375f), 0.0f);
  EXPECT_EQ(encoder.Norm(), 1.5);
  encoder.Skipped(3);
  EXPECT_EQ(encoder.Norm(), 0.0);
}

// ---- residuals that checkpoints have ----

TEST_F(LaneEncoderTest, AnUndisturbedLaneSendsTheSameWhetherItsResidualIsKeptOrNot) {
  LaneEncoder kept(layout_, two_bit_, Residuals::kKept), dropped(layout_, two_bit_);
  kept.Begin(0, nullptr);
  int64_t before = -1;
  for (const int64_t step : {0, 1, 2, 4, 5, 6}) {  // without samples in step 3
    const LaneStep at{.step = step, .step_before = before};
    const float gradient = 0.1f * static_cast<float>(step + 3);
    EXPECT_EQ(Send(kept, at, gradient), Send(dropped, at, gradient)) << step;
    if (step == 2) {
      kept.Skipped(2);
      dropped.Skipped(2);
    }
    before = step;
    const absl::Span<const float> one = kept.Residual(0)->span(),
                                  other = dropped.Residual(0)->span();
    EXPECT_TRUE(std::equal(one.begin(), one.end(), other.begin(), other.end())) << step;
  }
  EXPECT_GT(dropped.Norm(), 0);
}

TEST_F(LaneEncoderTest, AKeptLaneGoesOnInAnyLaterStep) {
  LaneEncoder encoder(layout_, two_bit_, Residuals::kKept);
  encoder.Begin(0, nullptr);
  EXPECT_EQ(Send(encoder, 7, 0.375f), 0.0f);
  EXPECT_EQ(Send(encoder, 8, 0.25f), 0.5f);
  EXPECT_EQ(Send(encoder, 11, 0.375f), 0.5f);
}

TEST_F(LaneEncoderTest, ALaneGoesOnElsewhereFromWhatWasSaved) {
  LaneEncoder first(layout_, two_bit_, Residuals::kKept);
  first.Begin(0, nullptr);
  Send(first, 1, 0.375f);
  const auto saved = first.Residual(0);
  EXPECT_EQ(saved->span()[0], 0.375f);
  EXPECT_EQ(first.Residual(1), nullptr);
  // The file is still being written while it goes on.
  EXPECT_EQ(Send(first, 2, 0.25f), 0.5f);
  Send(first, 3, 0.125f);
  Send(first, 4, 0.0625f);
  EXPECT_EQ(saved->span()[0], 0.375f);

  LaneEncoder second(layout_, two_bit_, Residuals::kKept);
  auto copy = std::make_shared<exchange::FloatBuffer>(layout_.total_floats());
  std::copy(saved->span().begin(), saved->span().end(), copy->data());
  second.Begin(0, copy);
  EXPECT_EQ(second.Residual(0)->span()[0], 0.375f);
  EXPECT_EQ(Send(second, 2, 0.25f), 0.5f);
  EXPECT_EQ(Send(second, 3, 0.125f), 0.0f);
  EXPECT_EQ(second.Residual(0)->span()[0], 0.25f);
}

TEST_F(LaneEncoderTest, ASkippedStepLeavesAKeptResidualAsItWas) {
  LaneEncoder encoder(layout_, two_bit_, Residuals::kKept);
  encoder.Begin(0, nullptr);
  encoder.Skipped(0);  // it has encoded nothing
  Send(encoder, 1, 0.375f);
  Send(encoder, 2, 0.0625f);
  encoder.Skipped(2);
  EXPECT_EQ(encoder.Residual(0)->span()[0], 0.375f);
  EXPECT_EQ(Send(encoder, 3, 0.125f), 0.5f);
  encoder.Skipped(3);
  EXPECT_EQ(Send(encoder, 4, 0.0625f), 0.0f);
  EXPECT_EQ(encoder.Residual(0)->span()[0], 0.4375f);
}

TEST_F(LaneEncoderTest, TheLossScaleIsNotInTheResidual) {
  LaneEncoder encoder(layout_, two_bit_);
  Send(encoder, 0, 0.0f);
  EXPECT_EQ(Send(encoder, {.step = 1, .loss_scale = 1024}, 0.375f * 1024), 0.0f);
  EXPECT_EQ(Send(encoder, {.step = 2, .loss_scale = 512}, 0.25f * 512), 256.0f);
  EXPECT_EQ(Send(encoder, {.step = 3, .loss_scale = 1}, 0.375f), 0.5f);
}

TEST_F(LaneEncoderTest, TheThresholdIsOfTheSumOverTheSamples) {
  LaneEncoder encoder(layout_, two_bit_);
  EXPECT_EQ(Send(encoder, {.step = 0, .samples = 4}, 0.1875f), 0.125f);
  EXPECT_EQ(Send(encoder, {.step = 1, .samples = 4}, 0.03125f), 0.0f);
}

// Otherwise it would be most of the mean magnitude, and weights of padding would change.
TEST(LaneEncoderPaddingTest, PaddingStaysZeroAndCountsInNoMean) {
  const training::FlatLayout layout = WithStatistics(10, 16, /*chunk_floats=*/512);
  LaneEncoder encoder(layout, {.encoding = GradientEncoding::kOneBit});
  std::vector<float> gradient(layout.total_floats(), 0.0f);
  std::fill_n(gradient.begin(), 10, 2.0f);
  gradient[3] = -2.0f;
  for (int64_t step = 0; step < 3; ++step) {
    std::vector<float> decoded(layout.total_floats(), 77.0f);
    encoder.Decode(*encoder.Encode({.step = step, .step_before = step - 1}, gradient),
                   absl::MakeSpan(decoded));
    EXPECT_EQ(decoded, gradient) << step;
  }
  EXPECT_EQ(encoder.Norm(), 0.0);
}

}  // namespace
}  // namespace capstan::gpu_worker
