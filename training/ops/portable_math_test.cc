#include "training/ops/portable_math.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace capstan::training {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Distance of `got` from `want` in units in the last place of `want`, rounded to double.
double PlacesOff(double got, long double want) {
  const double rounded = std::abs(static_cast<double>(want));
  if (std::isinf(rounded)) return got == static_cast<double>(want) ? 0 : kInfinite;
  const double unit = std::nextafter(rounded, kInfinite) - rounded;
  return static_cast<double>(std::abs(static_cast<long double>(got) - want) / unit);
}

struct Sweep {
  double from, to;
  int points;
  double At(int i) const { return from + (to - from) * ((i + 0.37) / points); }
};
const std::vector<Sweep>& ExpSweeps() {
  static const auto& sweeps = *new std::vector<Sweep>{{-745.2, -708, 20000},
                                                      {-708, 0, 100000},
                                                      {0, 709.7, 100000},
                                                      {-1, 1, 100000},
                                                      {-1e-5, 1e-5, 10000}};
  return sweeps;
}
const std::vector<Sweep>& LogSweeps() {
  static const auto& sweeps = *new std::vector<Sweep>{
      {0.4, 2.2, 200000}, {0.99, 1.01, 50000},     {1, 1e5, 100000},     {0, 1e-300, 10000},
      {0, 1e-310, 10000}, {1e300, 1.7e308, 10000}, {1, 1 + 1e-9, 10000}, {1 - 1e-9, 1, 10000}};
  return sweeps;
}
const std::vector<Sweep>& ErfcSweeps() {
  static const auto& sweeps = *new std::vector<Sweep>{
      {-7, 0, 100000}, {0, 0.6, 100000}, {0.5, 7.5, 200000}, {6.9, 7.1, 10000}, {7, 26.5, 100000}};
  return sweeps;
}

template <typename Function, typename Exact>
double MostPlacesOff(const std::vector<Sweep>& sweeps, Function function, Exact exact) {
  double most = 0;
  for (const Sweep& sweep : sweeps) {
    for (int i = 0; i < sweep.points; ++i) {
      const double x = sweep.At(i);
      most = std::max(most, PlacesOff(function(x), exact(static_cast<long double>(x))));
    }
  }
  return most;
}

// The bounds are what the header says. Seen over 20 million points: 0.89, 0.86 and 6.02.
TEST(PortableMathTest, IsNearTheCLibrary) {
  EXPECT_LT(MostPlacesOff(ExpSweeps(), PortableExp, [](long double x) { return std::exp(x); }), 1);
  EXPECT_LT(MostPlacesOff(LogSweeps(), PortableLog, [](long double x) { return std::log(x); }), 1);
  EXPECT_LT(MostPlacesOff(ErfcSweeps(), PortableErfc, [](long double x) { return std::erfc(x); }),
            7);
}

TEST(PortableMathTest, SpecialValues) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(PortableExp(nan)));
  EXPECT_EQ(PortableExp(0), 1);
  EXPECT_EQ(PortableExp(-0.0), 1);
  EXPECT_EQ(PortableExp(kInfinite), kInfinite);
  EXPECT_EQ(PortableExp(-kInfinite), 0);
  // The last arguments whose results are finite and not 0: ln of 2^1024 (1 - 2^-54) and of 2^-1075.
  EXPECT_LT(PortableExp(709.782712893383973), kInfinite);
  EXPECT_EQ(PortableExp(709.782712893384096), kInfinite);
  EXPECT_EQ(PortableExp(-745.133219101941108), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(PortableExp(-745.133219101941222), 0);

  EXPECT_TRUE(std::isnan(PortableLog(nan)));
  EXPECT_TRUE(std::isnan(PortableLog(-1)));
  EXPECT_TRUE(std::isnan(PortableLog(-kInfinite)));
  EXPECT_EQ(PortableLog(0), -kInfinite);
  EXPECT_EQ(PortableLog(-0.0), -kInfinite);
  EXPECT_EQ(PortableLog(1), 0);
  EXPECT_EQ(PortableLog(kInfinite), kInfinite);
  EXPECT_EQ(PortableLog(2), 0.69314718055994530942);

  EXPECT_TRUE(std::isnan(PortableErfc(nan)));
  EXPECT_EQ(PortableErfc(0), 1);
  EXPECT_EQ(PortableErfc(kInfinite), 0);
  EXPECT_EQ(PortableErfc(-kInfinite), 2);
}

// The point of these functions: the same numbers from every compiler, library and processor. Computed by g++ 12 and
// clang 14 for x86-64, with and without its fused multiply-add.
TEST(PortableMathTest, HasTheseBits) {
  const auto hash = [](const std::vector<Sweep>& sweeps, auto function) {
    uint64_t sum = 14695981039346656037u;  // as FNV-1a, by words
    for (const Sweep& sweep : sweeps) {
      for (int i = 0; i < sweep.points; ++i) {
        const double y = function(sweep.At(i));
        uint64_t bits = 0;
        std::memcpy(&bits, &y, sizeof(bits));
        sum = (sum ^ bits) * 1099511628211u;
      }
    }
    return sum;
  };
  EXPECT_EQ(hash(ExpSweeps(), PortableExp), 3448951553452773641u);
  EXPECT_EQ(hash(LogSweeps(), PortableLog), 5364624208842187664u);
  EXPECT_EQ(hash(ErfcSweeps(), PortableErfc), 18074237168519981453u);
}

}  // namespace
}  // namespace capstan::training
