// fp16, bf16 and int8.
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

constexpr float kMost = std::numeric_limits<float>::max();
constexpr float kLeast = std::numeric_limits<float>::denorm_min();

const GradientFormat kHalf = {.encoding = GradientEncoding::kFloat16};
const GradientFormat kBrain = {.encoding = GradientEncoding::kBFloat16};
const GradientFormat kBytes = {.encoding = GradientEncoding::kInt8};

// The value of a finite binary16, by IEEE 754-2019, section 3.4.
double Binary16(uint32_t half) {
  const int exponent = static_cast<int>(half >> 10 & 31);
  const double fraction = half & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

uint32_t Only(const GradientFormat& format, float value) {
  return BitsOf(Encoded(format, {value}))[0];
}
float Reads(const GradientFormat& format, uint32_t word) {
  return Decoded(format, WordsOf({&word, 1}), 1)[0];
}

TEST(Float16Test, HasTwoNumbersInAWordAndZeroBehindTheLast) {
  EXPECT_THAT(BitsOf(Encoded(kHalf, {1, -2, 0.5f})), ElementsAre(0xC0003C00, 0x00003800));
  EXPECT_THAT(Decoded(kHalf, WordsOf({0xC0003C00, 0xFFFF3800}), 3), ElementsAre(1, -2, 0.5f));
}

TEST(Float16Test, EveryFiniteNumberHasItsValueAndComesBack) {
  for (uint32_t half = 0; half < 65536; ++half) {
    if ((half & 0x7C00) == 0x7C00) continue;
    const float value = Reads(kHalf, half);
    ASSERT_EQ(value, Binary16(half)) << half;
    ASSERT_EQ(std::signbit(value), half >= 0x8000) << half;
    ASSERT_EQ(Only(kHalf, value), half);
  }
}

TEST(Float16Test, InfinityAndNanComeBack) {
  EXPECT_EQ(Only(kHalf, kInf), 0x7C00u);
  EXPECT_EQ(Only(kHalf, -kInf), 0xFC00u);
  EXPECT_EQ(Reads(kHalf, 0x7C00), kInf);
  EXPECT_EQ(Reads(kHalf, 0xFC00), -kInf);
  for (uint32_t fraction = 1; fraction < 1024; ++fraction) {
    ASSERT_TRUE(std::isnan(Reads(kHalf, 0x7C00 | fraction))) << fraction;
    ASSERT_TRUE(std::isnan(Reads(kHalf, 0xFC00 | fraction))) << fraction;
  }
  for (const uint32_t bits : {0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu}) {
    const uint32_t half = Only(kHalf, FloatOf(bits));
    EXPECT_EQ(half & 0x7C00, 0x7C00u) << bits;
    EXPECT_NE(half & 0x0200, 0u) << bits;  // quiet
    EXPECT_EQ(half >> 15, bits >> 31) << bits;
  }
}

// The middle of two neighbours goes to the one whose last bit is 0, and the floats beside the
// middle go to the nearer one: of all normal and subnormal numbers.
TEST(Float16Test, RoundsToNearestEven) {
  for (uint32_t half = 0; half < 0x7BFF; ++half) {
    const auto middle = static_cast<float>((Binary16(half) + Binary16(half + 1)) / 2);
    const uint32_t even = half % 2 == 0 ? half : half + 1;
    ASSERT_EQ(Only(kHalf, middle), even) << half;
    ASSERT_EQ(Only(kHalf, -middle), even | 0x8000) << half;
    ASSERT_EQ(Only(kHalf, std::nextafter(middle, 0.0f)), half);
    ASSERT_EQ(Only(kHalf, std::nextafter(middle, kInf)), half + 1);
  }
}

TEST(Float16Test, OverflowsToInfinityFrom65520On) {
  EXPECT_EQ(Only(kHalf, 65504), 0x7BFFu);
  EXPECT_EQ(Only(kHalf, std::nextafter(65520.0f, 0.0f)), 0x7BFFu);
  for (const float large : {65520.0f, 65535.0f, 65536.0f, 1e6f, kMost}) {
    EXPECT_EQ(Only(kHalf, large), 0x7C00u) << large;
    EXPECT_EQ(Only(kHalf, -large), 0xFC00u) << large;
  }
}

TEST(Float16Test, TinyNumbersBecomeZeroOfTheirSign) {
  for (const float tiny : {0.0f, kLeast, 1e-38f, std::ldexp(1.0f, -25)}) {
    EXPECT_EQ(Only(kHalf, tiny), 0u) << tiny;
    EXPECT_EQ(Only(kHalf, -tiny), 0x8000u) << tiny;
  }
  EXPECT_EQ(Only(kHalf, std::ldexp(1.0f, -24)), 1u);
  EXPECT_EQ(Only(kHalf, std::ldexp(1.5f, -24)), 2u);
}

TEST(BFloat16Test, HasTwoNumbersInAWordAndZeroBehindTheLast) {
  EXPECT_THAT(BitsOf(Encoded(kBrain, {1, -2, 0.5f})), ElementsAre(0xC0003F80, 0x00003F00));
  EXPECT_THAT(Decoded(kBrain, WordsOf({0xC0003F80, 0xFFFF3F00}), 3), ElementsAre(1, -2, 0.5f));
}

TEST(BFloat16Test, EveryNumberIsTheUpperHalfOfAFloatAndComesBack) {
  for (uint32_t half = 0; half < 65536; ++half) {
    const float value = Reads(kBrain, half);
    ASSERT_EQ(BitsOf({&value, 1})[0], half << 16);
    const bool nan = (half & 0x7FFF) > 0x7F80;
    ASSERT_EQ(Only(kBrain, value), nan ? half | 0x40 : half);
  }
}

TEST(BFloat16Test, RoundsToNearestEven) {
  for (uint32_t half = 0; half < 0x7F80; ++half) {
    const uint32_t middle = half << 16 | 0x8000;
    const uint32_t even = half % 2 == 0 ? half : half + 1;
    ASSERT_EQ(Only(kBrain, FloatOf(middle)), even);
    ASSERT_EQ(Only(kBrain, -FloatOf(middle)), even | 0x8000);
    ASSERT_EQ(Only(kBrain, FloatOf(middle - 1)), half);
    ASSERT_EQ(Only(kBrain, FloatOf(middle + 1)), half + 1);
  }
}

TEST(BFloat16Test, OverflowsToInfinityAndKeepsNan) {
  EXPECT_EQ(Only(kBrain, FloatOf(0x7F7F7FFF)), 0x7F7Fu);
  EXPECT_EQ(Only(kBrain, kMost), 0x7F80u);
  EXPECT_EQ(Only(kBrain, -kMost), 0xFF80u);
  EXPECT_EQ(Only(kBrain, kInf), 0x7F80u);
  for (const uint32_t bits : {0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu}) {
    const uint32_t half = Only(kBrain, FloatOf(bits));
    EXPECT_EQ(half & 0x7FC0, 0x7FC0u) << bits;  // quiet
    EXPECT_EQ(half >> 15, bits >> 31) << bits;
  }
}

// A vectorised loop and its last numbers round alike.
TEST(HalvesTest, ANumberDoesNotDependOnItsPlace) {
  const std::vector<float> values = RandomGradient(67, 1);
  for (const GradientFormat& format : {kHalf, kBrain}) {
    for (size_t floats = 1; floats <= values.size(); ++floats) {
      const auto gradient = absl::MakeConstSpan(values).first(floats);
      const std::vector<float> decoded = RoundTrip(format, gradient);
      for (size_t i = 0; i < floats; ++i) {
        EXPECT_EQ(decoded[i], Reads(format, Only(format, values[i]))) << i << " of " << floats;
      }
    }
  }
}

// scale 2: 254 / 127.
TEST(Int8Test, HasAScaleAndFourNumbersInAWord) {
  const std::vector<float> gradient = {254, -254, 2, 1, 3, -1};
  const std::vector<float> encoded = Encoded(kBytes, gradient);
  EXPECT_EQ(encoded[0], 2);
  // 127, -127, 1 and 0.5, which is rounded to 0; 1.5 to 2, -0.5 to 0; two bytes of padding.
  EXPECT_THAT(BitsOf(encoded), ElementsAre(0x40000000, 0x0001817F, 0x00000002));
  EXPECT_THAT(Decoded(kBytes, encoded, 6), ElementsAre(254, -254, 2, 0, 4, 0));
}

TEST(Int8Test, BytesThatNoNumberUsesAreNotRead) {
  EXPECT_THAT(Decoded(kBytes, WordsOf({0x40000000, 0x7F7F7F81}), 1), ElementsAre(-254));
}

TEST(Int8Test, WholeMultiplesOfTheScaleComeBack) {
  std::vector<float> gradient;
  for (int i = -127; i <= 127; ++i) gradient.push_back(static_cast<float>(i) * 0.125f);
  EXPECT_EQ(RoundTrip(kBytes, gradient), gradient);
}

TEST(Int8Test, TheErrorIsAtMostHalfAScale) {
  for (const size_t floats : {1, 5, 255, 256, 257, 1000}) {
    const std::vector<float> gradient = RandomGradient(floats, 9);
    const std::vector<float> decoded = RoundTrip(kBytes, gradient);
    for (size_t first = 0; first < floats; first += 256) {
      const size_t end = std::min(floats, first + 256);
      float most = 0;
      for (size_t i = first; i < end; ++i) most = std::max(most, std::fabs(gradient[i]));
      const double scale = most / 127.0;
      for (size_t i = first; i < end; ++i) {
        // Half a scale, and the roundings of the scale and of the product.
        EXPECT_LE(std::fabs(double{decoded[i]} - gradient[i]), scale / 2 + most * 2e-7) << i;
      }
    }
  }
}

// The 257th number is a block of its own, with a scale of its own.
TEST(Int8Test, ABlockHas256Numbers) {
  std::vector<float> gradient(257, 127.0f);
  gradient[256] = -1e-3f;
  const std::vector<float> encoded = Encoded(kBytes, gradient);
  ASSERT_EQ(encoded.size(), 67u);
  EXPECT_EQ(encoded[0], 1);
  for (size_t i = 1; i <= 64; ++i) EXPECT_EQ(BitsOf(encoded)[i], 0x7F7F7F7Fu) << i;
  EXPECT_EQ(encoded[65], 1e-3f / 127);
  EXPECT_EQ(BitsOf(encoded)[66], 0x81u);
  EXPECT_NEAR(Decoded(kBytes, encoded, 257)[256], -1e-3f, 1e-10);
}

// 64 / 127 of the least float is rounded to 1 of it, and 63 / 127 to 0.
TEST(Int8Test, TheSmallestNumbersAreKeptOrBecomeZero) {
  EXPECT_THAT(RoundTrip(kBytes, {64 * kLeast, -3 * kLeast}), ElementsAre(64 * kLeast, -3 * kLeast));
  EXPECT_THAT(BitsOf(Encoded(kBytes, {63 * kLeast, -3 * kLeast})), ElementsAre(0u, 0u));
  // The scale is 1 of it, for 189 / 127 is 1.488. So 189 is beyond the largest number, 127.
  EXPECT_THAT(RoundTrip(kBytes, {189 * kLeast, -189 * kLeast}),
              ElementsAre(127 * kLeast, -127 * kLeast));
  EXPECT_THAT(BitsOf(Encoded(kBytes, {0, -0.0f, 0})), ElementsAre(0u, 0u));
}

// 127 times the scale must not be rounded up to infinity.
TEST(Int8Test, TheLargestFloatStaysFinite) {
  const std::vector<float> decoded = RoundTrip(kBytes, {kMost, -kMost, kMost / 127, 0});
  EXPECT_NEAR(decoded[0] / kMost, 1, 1e-6);
  EXPECT_NEAR(decoded[1] / kMost, -1, 1e-6);
  EXPECT_NEAR(decoded[2] / (kMost / 127), 1, 1e-6);
  EXPECT_EQ(decoded[3], 0);
}

TEST(Int8Test, ABlockWithABadNumberIsNanAndOthersAreNot) {
  for (const float bad : {kInf, -kInf, kNan, -kNan}) {
    for (const size_t at : {256, 300, 511}) {
      std::vector<float> gradient(600, 1.0f);
      gradient[at] = bad;
      const std::vector<float> decoded = RoundTrip(kBytes, gradient);
      for (size_t i = 0; i < decoded.size(); ++i) {
        EXPECT_EQ(std::isnan(decoded[i]), i >= 256 && i < 512) << bad << " at " << at << ": " << i;
      }
      EXPECT_THAT(absl::MakeConstSpan(decoded).first(256), Each(1.0f));
    }
  }
}

}  // namespace
}  // namespace capstan::training
