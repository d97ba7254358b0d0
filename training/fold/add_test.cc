#include "training/fold/add.h"

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::training {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(AddTest, AddsElementwise) {
  std::vector<float> left = {1, 2, 0.5f};
  const std::vector<float> right = {10, -2, 0.25f};
  AddInto(left.data(), right.data(), 3);
  EXPECT_THAT(left, testing::ElementsAre(11, 0, 0.75f));
  std::vector<double> wide = {1e300, 1};
  const std::vector<double> more = {1, 1e-16};
  AddInto(wide.data(), more.data(), 2);
  EXPECT_THAT(wide, testing::ElementsAre(1e300, 1));
}

TEST(AddTest, BytesMayBeUnaligned) {
  const std::vector<float> right = {1, -2, 3, 1e-30f, 5};
  for (size_t shift = 0; shift < 4; ++shift) {
    std::string bytes(shift + right.size() * sizeof(float), '\0');
    std::memcpy(&bytes[shift], right.data(), right.size() * sizeof(float));
    std::vector<float> left = {1, 1, 1, 1e-30f, -5};
    AddBytesInto(left.data(), absl::string_view(bytes).substr(shift));
    EXPECT_THAT(left, testing::ElementsAre(2, -1, 4, 2e-30f, 0));
  }
}

// The scan works in blocks of 2048. A bad value is found at every kind of position.
TEST(AddTest, AllFiniteFindsABadValueAnywhere) {
  for (const size_t size : {1u, 7u, 2048u, 2049u, 6000u}) {
    std::vector<float> values(size, std::numeric_limits<float>::max());
    values[0] = std::numeric_limits<float>::denorm_min();
    EXPECT_TRUE(AllFinite(values));
    for (const size_t place : {size_t{0}, size / 2, size - 1}) {
      for (const float bad : {kInf, -kInf, kNan, -kNan}) {
        std::vector<float> copy = values;
        copy[place] = bad;
        EXPECT_FALSE(AllFinite(copy)) << size << " " << place;
      }
    }
  }
  EXPECT_TRUE(AllFinite(absl::Span<const float>()));
  // Nothing after the end is read.
  for (const size_t size : {1u, 2047u, 2048u, 2049u}) {
    std::vector<float> values(2 * 4096, 1.0f);
    values[size] = kNan;
    EXPECT_TRUE(AllFinite(absl::MakeConstSpan(values).first(size))) << size;
  }
  EXPECT_TRUE(AllFinite(std::vector<double>{1e308, -0.0}));
  EXPECT_FALSE(AllFinite(std::vector<double>{1, -std::numeric_limits<double>::infinity()}));
  EXPECT_FALSE(AllFinite(std::vector<double>{std::numeric_limits<double>::quiet_NaN()}));
}

}  // namespace
}  // namespace capstan::training
