// What all formats promise (gradient_format.h). Each format alone is in the other tests here.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/compress/gradient_format.h"
#include "training/compress/test_gradients.h"

namespace capstan::training {
namespace {

std::vector<GradientFormat> AllFormats() {
  return {{.encoding = GradientEncoding::kNone},
          {.encoding = GradientEncoding::kFloat16},
          {.encoding = GradientEncoding::kBFloat16},
          {.encoding = GradientEncoding::kInt8},
          {.encoding = GradientEncoding::kTwoBit},
          {.encoding = GradientEncoding::kOneBit},
          {.encoding = GradientEncoding::kTopK},
          {.encoding = GradientEncoding::kTopK, .ratio = 0.3},
          {.encoding = GradientEncoding::kTopK, .ratio = 1}};
}
std::string Name(const GradientFormat& format) {
  const char* const names[] = {"none", "fp16", "bf16", "int8", "2bit", "1bit", "top_k "};
  std::string name = names[static_cast<int>(format.encoding)];
  if (format.encoding == GradientEncoding::kTopK) name += std::to_string(format.ratio);
  return name;
}

bool AllFiniteNaively(const std::vector<float>& values) {
  for (const float value : values) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

// Counted one number after another.
int64_t WordsNaively(const GradientFormat& format, int64_t floats) {
  int64_t bits = 0;
  for (int64_t i = 0; i < floats; ++i) {
    switch (format.encoding) {
      case GradientEncoding::kNone:
        bits += 32;
        break;
      case GradientEncoding::kFloat16:
      case GradientEncoding::kBFloat16:
        bits += 16;
        break;
      case GradientEncoding::kInt8:
        bits += i % 256 == 0 ? 32 + 8 : 8;
        break;
      case GradientEncoding::kTwoBit:
        bits += i == 0 ? 32 + 2 : 2;
        break;
      case GradientEncoding::kOneBit:
        bits += i % 256 == 0 ? 32 + 1 : 1;
        break;
      case GradientEncoding::kTopK:
        break;
    }
  }
  return (bits + 31) / 32;
}

TEST(EveryFormatTest, SizesAreThoseOfTheNumbersRoundedUpToWords) {
  for (const GradientFormat& format : AllFormats()) {
    if (format.encoding == GradientEncoding::kTopK) continue;
    for (int64_t floats = 1; floats <= 600; ++floats) {
      EXPECT_EQ(EncodedWords(format, floats), WordsNaively(format, floats))
          << Name(format) << " of " << floats;
    }
    EXPECT_EQ(EncodedWords(format, 65536), WordsNaively(format, 65536)) << Name(format);
  }
  // By hand: words of a large chunk.
  const auto words = [](GradientEncoding encoding) {
    return EncodedWords({.encoding = encoding}, 65536);
  };
  EXPECT_EQ(words(GradientEncoding::kNone), 65536);
  EXPECT_EQ(words(GradientEncoding::kFloat16), 32768);
  EXPECT_EQ(words(GradientEncoding::kBFloat16), 32768);
  EXPECT_EQ(words(GradientEncoding::kInt8), 256 * 65);
  EXPECT_EQ(words(GradientEncoding::kTwoBit), 4097);
  EXPECT_EQ(words(GradientEncoding::kOneBit), 256 * 9);
  EXPECT_EQ(words(GradientEncoding::kTopK), 2 * 656);
}

TEST(EveryFormatTest, TopKSendsAtLeastOneAndAtMostAll) {
  const auto words = [](double ratio, int64_t floats) {
    return EncodedWords({.encoding = GradientEncoding::kTopK, .ratio = ratio}, floats);
  };
  for (int64_t floats = 1; floats <= 40; ++floats) {
    EXPECT_EQ(words(0.01, floats), 2) << floats;
    EXPECT_EQ(words(1e-6, floats), 2) << floats;
    EXPECT_EQ(words(0.25, floats), 2 * ((floats + 3) / 4)) << floats;
    EXPECT_EQ(words(1, floats), 2 * floats) << floats;
  }
  EXPECT_EQ(words(0.01, 100), 2);
  EXPECT_EQ(words(0.01, 101), 4);
  EXPECT_EQ(words(1, 65536), 2 * 65536);
}

TEST(EveryFormatTest, OnlyFormatsThatLeaveOutNumbersHaveFeedback) {
  for (const GradientFormat& format : AllFormats()) {
    EXPECT_EQ(format.has_feedback(), format.encoding == GradientEncoding::kTwoBit ||
                                         format.encoding == GradientEncoding::kOneBit ||
                                         format.encoding == GradientEncoding::kTopK)
        << Name(format);
  }
}

// Infinities, NaN with and without the quiet bit, and the negative zero.
TEST(EveryFormatTest, NoneCopiesEveryBit) {
  const std::vector<uint32_t> bits = {0x3F800000, 0x80000000, 0x7F800000, 0xFF800000,
                                      0x7F800001, 0xFFC12345, 0x00000001, 0x7F7FFFFF};
  const GradientFormat none;
  const std::vector<float> encoded = Encoded(none, WordsOf(bits));
  EXPECT_EQ(BitsOf(encoded), bits);
  EXPECT_EQ(BitsOf(Decoded(none, encoded, bits.size())), bits);
}

TEST(EveryFormatTest, ZerosAreDecodedAsZeros) {
  for (const GradientFormat& format : AllFormats()) {
    for (size_t floats = 1; floats <= 40; ++floats) {
      const std::vector<float> zeros(floats, 0.0f);
      const FeedbackStep step = AnyStepOf(format, zeros, zeros);
      EXPECT_EQ(step.decoded, zeros) << Name(format) << " of " << floats;
      EXPECT_EQ(step.residual, zeros) << Name(format) << " of " << floats;
    }
  }
}

// A step with such a gradient must be skipped. Its residual is then still the old one.
TEST(EveryFormatTest, WhatIsNotFiniteNeverBecomesFinite) {
  const std::vector<float> gradient = RandomGradient(40, 1);
  const std::vector<float> residual = RandomGradient(40, 2);
  for (const GradientFormat& format : AllFormats()) {
    ASSERT_TRUE(AllFiniteNaively(AnyStepOf(format, gradient, residual).decoded)) << Name(format);
    for (const float bad : {kInf, -kInf, kNan, -kNan, FloatOf(0x7F800001), FloatOf(0xFF8FFFFF)}) {
      for (size_t at = 0; at < gradient.size(); ++at) {
        std::vector<float> hit = gradient;
        hit[at] = bad;
        const FeedbackStep step = AnyStepOf(format, hit, residual);
        EXPECT_FALSE(AllFiniteNaively(step.decoded)) << Name(format) << ", " << bad << " at " << at;
        EXPECT_EQ(step.residual, residual) << Name(format) << ", " << bad << " at " << at;
        EXPECT_TRUE(IsWellFormed(format, step.encoded, 40)) << Name(format);
      }
    }
  }
}

// The same behind the first block of int8 and behind many words of bits.
TEST(EveryFormatTest, WhatIsNotFiniteNeverBecomesFiniteInALargeChunk) {
  const std::vector<float> gradient = RandomGradient(1000, 1);
  const std::vector<float> residual(1000, 0.0f);
  for (const GradientFormat& format : AllFormats()) {
    for (const float bad : {kInf, -kInf, kNan}) {
      for (const size_t at : {0, 255, 256, 511, 999}) {
        std::vector<float> hit = gradient;
        hit[at] = bad;
        EXPECT_FALSE(AllFiniteNaively(AnyStepOf(format, hit, residual).decoded))
            << Name(format) << ", " << bad << " at " << at;
      }
    }
  }
}

// The number is finite, and its sum with the residual is not.
TEST(EveryFormatTest, AnOverflowOfTheSumIsNotFinite) {
  const float most = std::numeric_limits<float>::max();
  for (const GradientFormat& format : AllFormats()) {
    if (!format.has_feedback()) continue;
    const std::vector<float> residual = {0, most, 0};
    const FeedbackStep step = StepOf(format, {1, most, 1}, residual);
    EXPECT_FALSE(AllFiniteNaively(step.decoded)) << Name(format);
    EXPECT_EQ(step.residual, residual) << Name(format);
  }
}

TEST(EveryFormatTest, EveryEncodingOfAGradientIsWellFormed) {
  for (const GradientFormat& format : AllFormats()) {
    for (const int64_t floats : {1, 2, 31, 32, 33, 40, 256, 257, 1000}) {
      const std::vector<float> zeros(floats, 0.0f);
      const FeedbackStep step = AnyStepOf(format, RandomGradient(floats, 3), zeros);
      EXPECT_TRUE(IsWellFormed(format, step.encoded, floats)) << Name(format) << " " << floats;
      EXPECT_TRUE(IsWellFormed(format, AnyStepOf(format, zeros, zeros).encoded, floats))
          << Name(format) << " " << floats;
    }
  }
}

// What was decoded and what is left add up to all gradients. Both sums are in double, and each
// step's float32 errors are at most those of the additions to the residual.
TEST(EveryFormatTest, WithFeedbackNothingIsLeftOutForEver) {
  constexpr size_t kFloats = 300;
  constexpr int kSteps = 200;
  for (const GradientFormat& format : AllFormats()) {
    if (!format.has_feedback()) continue;
    std::vector<float> residual(kFloats, 0.0f);
    std::vector<double> sent(kFloats, 0.0);
    std::vector<double> want(kFloats, 0.0);
    double most = 0;
    for (int i = 0; i < kSteps; ++i) {
      const std::vector<float> gradient = RandomGradient(kFloats, 100 + i);
      const FeedbackStep step = StepOf(format, gradient, residual);
      residual = step.residual;
      for (size_t j = 0; j < kFloats; ++j) {
        want[j] += gradient[j];
        sent[j] += step.decoded[j];
        most = std::max({most, std::fabs(double{residual[j]}), std::fabs(double{gradient[j]})});
      }
    }
    // Two roundings in a step, each by half a unit in the last place of a sum below 4 * most.
    const double tolerance = kSteps * 2 * (4 * most) * std::ldexp(1.0, -24);
    for (size_t j = 0; j < kFloats; ++j) {
      EXPECT_NEAR(sent[j] + residual[j], want[j], tolerance) << Name(format) << " at " << j;
    }
    EXPECT_LT(tolerance, 0.1) << Name(format);  // else the test says nothing
  }
}

// The residual is free of the loss scale, so a step's may differ from the one before.
TEST(EveryFormatTest, TheLossScaleIsAnExactFactorOnWhatIsSent) {
  constexpr float kScale = 1024;
  const std::vector<float> gradient = RandomGradient(300, 5);
  const std::vector<float> residual = RandomGradient(300, 6);
  std::vector<float> scaled = gradient;
  for (float& value : scaled) value *= kScale;
  for (const GradientFormat& format : AllFormats()) {
    if (!format.has_feedback()) continue;
    const FeedbackStep plain = StepOf(format, gradient, residual, {.samples = 4});
    const FeedbackStep times = StepOf(format, scaled, residual, {.loss_scale = 1024, .samples = 4});
    std::vector<float> want = plain.decoded;
    for (float& value : want) value *= kScale;
    EXPECT_EQ(BitsOf(times.decoded), BitsOf(want)) << Name(format);
    EXPECT_EQ(BitsOf(times.residual), BitsOf(plain.residual)) << Name(format);
  }
}

// Decoding changes nothing that the spans do not have, and reads no stale float.
TEST(EveryFormatTest, DecodeOverwritesAllOfOutAndNothingElse) {
  for (const GradientFormat& format : AllFormats()) {
    for (const size_t floats : {1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 300}) {
      const std::vector<float> zeros(floats, 0.0f);
      const FeedbackStep step = AnyStepOf(format, RandomGradient(floats, 7), zeros);
      std::vector<float> out(floats + 2, kNan);
      out.front() = out.back() = kStale;
      Decode(format, step.encoded, absl::MakeSpan(out).subspan(1, floats));
      EXPECT_EQ(out.front(), kStale) << Name(format) << " " << floats;
      EXPECT_EQ(out.back(), kStale) << Name(format) << " " << floats;
      EXPECT_EQ(BitsOf(absl::MakeConstSpan(out).subspan(1, floats)), BitsOf(step.decoded))
          << Name(format) << " " << floats;
    }
  }
}

// Frames are checked by their checksums, so bits that no number uses must not be left to chance.
TEST(EveryFormatTest, EncodingOverwritesEveryWord) {
  for (const GradientFormat& format : AllFormats()) {
    for (const size_t floats : {1, 2, 3, 17, 33, 257}) {
      const std::vector<float> gradient = RandomGradient(floats, 8);
      const std::vector<float> zeros(floats, 0.0f);
      std::vector<float> residual(floats);
      std::vector<float> words(EncodedWords(format, floats), FloatOf(0x7FAAAAAA));
      if (format.has_feedback()) {
        EncodeWithFeedback(format, {}, gradient, zeros, absl::MakeSpan(residual),
                           absl::MakeSpan(words));
      } else {
        Encode(format, gradient, absl::MakeSpan(words));
      }
      EXPECT_EQ(BitsOf(words), BitsOf(AnyStepOf(format, gradient, zeros).encoded))
          << Name(format) << " " << floats;
    }
  }
}

}  // namespace
}  // namespace capstan::training
