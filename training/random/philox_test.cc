#include "training/random/philox.h"

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::training {
namespace {

// Known answers of the paper's reference code (Random123, kat_vectors, philox4x32 10).
TEST(PhiloxTest, MatchesThePublishedVectors) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(
      Philox4x32({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}, {0xffffffffu, 0xffffffffu}),
      (PhiloxBlock{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(
      Philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
      (PhiloxBlock{0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u}));
}

// From a second implementation, in Python. A change of the key would change every trained model.
TEST(PhiloxTest, KeysOfPurposesNeverChange) {
  EXPECT_EQ(MakePhiloxKey(42, Purpose::kShuffle), (PhiloxKey{0x2feb6e95u, 0xbdd73226u}));
  EXPECT_EQ(MakePhiloxKey(42, Purpose::kInit), (PhiloxKey{0xb266f103u, 0x28efe333u}));
}

TEST(PhiloxTest, UniformStaysBelowOne) {
  EXPECT_EQ(ToUniform(0), 0.0f);
  EXPECT_EQ(ToUniform(0xffffffffu), 1.0f - 0x1p-24f);
  EXPECT_EQ(ToUniform(0x80000000u), 0.5f);
}

// The bound 2^63 + 1 rejects every second draw. Values from the Python implementation.
TEST(PhiloxTest, BoundedRejectsRatherThanFavours) {
  const Philox philox(7, Purpose::kAugment);
  std::vector<uint64_t> drawn;
  for (uint32_t i = 0; i < 8; ++i) {
    drawn.push_back(philox.Bounded({i, 0, 0, 0}, (uint64_t{1} << 63) + 1));
  }
  EXPECT_THAT(drawn,
              testing::ElementsAre(4390847574412342972u, 1939811074191353641u, 1843678822871936895u,
                                   774275114100443414u, 4754752745059221270u, 17277335815041165u,
                                   4964933800406730476u, 2168857167257686944u));
}

TEST(PhiloxTest, BoundedIsEven) {
  const Philox philox(1, Purpose::kShuffle);
  std::vector<int> count(7, 0);
  for (uint32_t i = 0; i < 70000; ++i) ++count[philox.Bounded({i, 0, 0, 0}, 7)];
  double chi_square = 0;
  for (const int n : count) chi_square += (n - 10000.0) * (n - 10000.0) / 10000.0;
  EXPECT_LT(chi_square, 22.5);  // 6 degrees of freedom, p = 0.001
  EXPECT_EQ(philox.Bounded({5, 6, 7, 8}, 1), 0u);
}

TEST(PhiloxTest, NormalsHaveTheMomentsOfTheNormalDistribution) {
  const Philox philox(3, Purpose::kSynthetic);
  const int n = 100000;
  double sum = 0, square = 0, fourth = 0, product = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const auto [a, b] = philox.Normals({i, 0, 0, 0});
    sum += a + b;
    square += a * a + b * b;
    fourth += a * a * a * a + b * b * b * b;
    product += a * b;
  }
  // Five standard errors.
  EXPECT_NEAR(sum / (2 * n), 0, 5 / std::sqrt(2.0 * n));
  EXPECT_NEAR(square / (2 * n), 1, 5 * std::sqrt(2.0 / (2 * n)));
  EXPECT_NEAR(fourth / (2 * n), 3, 5 * std::sqrt(96.0 / (2 * n)));
  EXPECT_NEAR(product / n, 0, 5 / std::sqrt(1.0 * n));
}

// A block whose words all differ, by hand. It shows which word is the upper half, and of which
// number.
TEST(PhiloxTest, NormalsAreTheBoxMullerOfTheirWords) {
  const PhiloxBlock block = {0x11111111u, 0x40000000u, 0x33333333u, 0x20000000u};
  // Words (0, 1) are 0x4000000011111111 / 2^64 or just above 1/4, words (2, 3) just above 1/8.
  const double u = 0.25 + 0x11111111p-64, v = 0.125 + 0x33333333p-64;
  const double radius = std::sqrt(-2 * std::log(u)), angle = 2 * std::acos(-1.0) * v;
  const auto [a, b] = ToNormals(block);
  EXPECT_NEAR(a, radius * std::cos(angle), 1e-12);
  EXPECT_NEAR(b, radius * std::sin(angle), 1e-12);
}

TEST(PhiloxTest, SixtyFourBitsAreTheFirstTwoWordsTheLowerFirst) {
  const Philox philox(9, Purpose::kShuffle);
  const PhiloxBlock block = philox.Block({1, 2, 3, 0});
  ASSERT_NE(block[0], block[1]);
  EXPECT_EQ(philox.Uniform64({1, 2, 3, 0}), (uint64_t{block[1]} << 32) + block[0]);
}

TEST(PhiloxTest, NormalsAreFiniteAtTheEnds) {
  for (const uint32_t bits : {0u, 0xffffffffu}) {
    const auto [a, b] = ToNormals({bits, bits, bits, bits});
    EXPECT_TRUE(std::isfinite(a) && std::isfinite(b)) << bits;
  }
}

}  // namespace
}  // namespace capstan::training
