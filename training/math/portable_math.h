// exp, log, tanh, sin, cos, pow and erfc in double, with the same bits on every machine. They use only
// additions, multiplications, divisions and integers, each rounded once, in one order. C libraries
// round differently from version to version, and the GNU one also from processor to processor.
//
// This holds only if the compiler fuses no multiplication with an addition (-ffp-contract=off,
// nvcc's --fmad=false) and if numbers below the least normal one are kept. C++17, for hosts and
// devices; stateless.
//
// Errors, measured in portable_math_test.cc: exp, log, sin and cos less than 1 unit in the last
// place, tanh less than 2, erfc less than 7. pow is rounded once from 85 bits or more, so all except one result in a
// billion are the nearest double.
//
// Sources: Cody & Waite 1980, Software Manual for the Elementary Functions (the reductions);
// coefficients from the power series named beside them; Dekker 1971, Numer. Math. 18, 224-242 (sums
// of two doubles); Matta & Reichel 1971, Math. Comp. 25, 339-344 (erfc).
#ifndef CAPSTAN_TRAINING_MATH_PORTABLE_MATH_H_
#define CAPSTAN_TRAINING_MATH_PORTABLE_MATH_H_

#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__CUDACC__)
#define CAPSTAN_PORTABLE __host__ __device__ inline
#else
#define CAPSTAN_PORTABLE inline
#endif

namespace capstan::training {
namespace portable_internal {

// ln 2 in two parts. The first has 32 bits, so that its product with an exponent is exact.
constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kPerLn2 = 1.4426950408889634;
constexpr double kLn2Rest = 0x1.cc01f97b57a08p-87;  // the rest of ln 2 after these two parts
constexpr double kSqrtHalf = 0.70710678118654752440;

CAPSTAN_PORTABLE uint64_t BitsOf(double x) {
  uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
CAPSTAN_PORTABLE double OfBits(uint64_t bits) {
  double x = 0;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
// 2^exponent, for exponents of normal numbers.
CAPSTAN_PORTABLE double PowerOfTwo(int exponent) {
  return OfBits(static_cast<uint64_t>(exponent + 1023) << 52);
}

// c[0] + c[1] x + ... + c[kSize - 1] x^(kSize - 1)
template <int kSize>
CAPSTAN_PORTABLE double Polynomial(const double (&c)[kSize], double x) {
  double sum = c[kSize - 1];
  for (int i = kSize - 2; i >= 0; --i) sum = sum * x + c[i];
  return sum;
}

// A number that is the sum of two doubles; |low| is at most half a unit in the last place of high.
struct Pair {
  double high, low;
};

// a + b without an error.
CAPSTAN_PORTABLE Pair ExactSum(double a, double b) {
  const double sum = a + b;
  const double of_b = sum - a;
  return {sum, (a - (sum - of_b)) + (b - of_b)};
}
// a b without an error, if a, b and the product lie within [2^-900, 2^900].
CAPSTAN_PORTABLE Pair ExactProduct(double a, double b) {
  constexpr double kSplitter = 0x1p27 + 1;  // a = a_high + a_low, 26 bits each
  const double a_much = kSplitter * a;
  const double b_much = kSplitter * b;
  const double a_high = a_much - (a_much - a), a_low = a - a_high;
  const double b_high = b_much - (b_much - b), b_low = b - b_high;
  const double product = a * b;
  return {product,
          a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)};
}
// Operations on pairs have errors of a few units of 2^-104 of the result; Add of the larger addend.
CAPSTAN_PORTABLE Pair Add(Pair a, Pair b) {
  const Pair high = ExactSum(a.high, b.high);
  const Pair low = ExactSum(a.low, b.low);
  const Pair sum = ExactSum(high.high, high.low + low.high);
  return ExactSum(sum.high, sum.low + low.low);
}
CAPSTAN_PORTABLE Pair Multiply(Pair a, Pair b) {
  const Pair product = ExactProduct(a.high, b.high);
  return ExactSum(product.high, product.low + (a.high * b.low + a.low * b.high));
}
CAPSTAN_PORTABLE Pair Divide(Pair a, Pair b) {
  const double first = a.high / b.high;
  const Pair part = Multiply(b, {first, 0});
  const Pair rest = Add(a, {-part.high, -part.low});
  return ExactSum(first, rest.high / b.high);
}

// x = 2^k mantissa, with the mantissa between the roots of 1/2 and of 2. x must be above 0 and
// finite.
CAPSTAN_PORTABLE double SplitExponent(double x, int* k) {
  *k = 0;
  if (x < std::numeric_limits<double>::min()) {
    x *= PowerOfTwo(54);
    *k = -54;
  }
  const uint64_t bits = BitsOf(x);
  *k += static_cast<int>(bits >> 52) - 1022;
  double mantissa = OfBits((bits & ((uint64_t{1} << 52) - 1)) | (uint64_t{1022} << 52));
  if (mantissa < kSqrtHalf) {
    mantissa *= 2;
    --*k;
  }
  return mantissa;
}

// y 2^k for 1/2 <= y <= 2. The largest and the smallest results need two factors. The second one
// rounds.
CAPSTAN_PORTABLE double Scale(double y, int k) {
  if (k > 1023) return y * PowerOfTwo(1023) * PowerOfTwo(k - 1023);
  if (k < -1022) return y * PowerOfTwo(k + 1000) * PowerOfTwo(-1000);
  return y * PowerOfTwo(k);
}

// ln x for finite x above 0.
CAPSTAN_PORTABLE Pair LogOf(double x) {
  int k = 0;
  const double mantissa = SplitExponent(x, &k);
  // ln mantissa = 2 atanh(s) with s = (mantissa - 1) / (mantissa + 1) and |s| < 0.172, i.e. 2 s
  // times the sum of s^2n / (2n + 1). The first omitted term is below 2^-110 of the sum.
  const Pair s = Divide({mantissa - 1, 0}, ExactSum(mantissa, 1));
  const Pair square = Multiply(s, s);
  Pair sum = {0, 0};
  for (int n = 20; n >= 0; --n) {
    sum = Add(Multiply(sum, square), Divide({1, 0}, {2.0 * n + 1, 0}));
  }
  sum = Multiply({2 * s.high, 2 * s.low}, sum);
  sum = Add(Add({k * kLn2Rest, 0}, ExactProduct(k, kLn2Low)), sum);
  return Add({k * kLn2High, 0}, sum);
}

// e^x for |x| < 800, rounded once unless it is below the least normal number.
CAPSTAN_PORTABLE double ExpOf(Pair x) {
  const int k = static_cast<int>(x.high * kPerLn2 + (x.high < 0 ? -0.5 : 0.5));
  const Pair low = ExactProduct(-k, kLn2Low);
  const Pair r = Add(Add(x, {-k * kLn2High, 0}), Add(low, {-k * kLn2Rest, 0}));
  // 1 + r (1 + r / 2 (1 + r / 3 (...))). |r| < 0.35, so the first omitted term is below 2^-110.
  Pair sum = {1, 0};
  for (int n = 24; n >= 1; --n) {
    sum = Add({1, 0}, Multiply(Divide(r, {static_cast<double>(n), 0}), sum));
  }
  return Scale(sum.high, k);
}

}  // namespace portable_internal

CAPSTAN_PORTABLE double PortableExp(double x) {
  using portable_internal::kLn2High;
  using portable_internal::kLn2Low;
  using portable_internal::kPerLn2;
  using portable_internal::Polynomial;
  if (x != x) return x;  // NOLINT(misc-redundant-expression): a NaN
  if (x > 709.79) return std::numeric_limits<double>::infinity();
  if (x < -745.14) return 0;
  // x = k ln 2 + r with |r| <= ln 2 / 2; r = high - low.
  const int k = static_cast<int>(x * kPerLn2 + (x < 0 ? -0.5 : 0.5));
  const double high = x - k * kLn2High;
  const double low = k * kLn2Low;
  const double r = high - low;
  // r coth(r / 2) = 2 + r^2/6 - r^4/360 + ...; the coefficients are twice the Bernoulli numbers
  // over factorials. Let q be the sum after the 2, and c = r - q. Then e^r = 1 + 2 r / (2 + q - r)
  // = 1 + r + r c / (2 - c). The first omitted term is below 2^-56.
  constexpr double kCoth[] = {1.0 / 6,       -1.0 / 360,     1.0 / 15120,
                              -1.0 / 604800, 1.0 / 23950080, -691.0 / 653837184000};
  const double square = r * r;
  const double c = r - square * Polynomial(kCoth, square);
  const double y = 1 + (r * c / (2 - c) - low + high);
  return portable_internal::Scale(y, k);
}

CAPSTAN_PORTABLE double PortableTanh(double x) {
  if (x != x) return x;  // NOLINT(misc-redundant-expression): a NaN
  const double a = x < 0 ? -x : x;
  if (a < 0.5) {
    // With r = 2 x: tanh x = r / (r coth(r / 2)), and r coth(r / 2) = 2 + r^2/6 - r^4/360 + ... as
    // in PortableExp. The first omitted term is below 2^-56.
    constexpr double kCoth[] = {1.0 / 6,
                                -1.0 / 360,
                                1.0 / 15120,
                                -1.0 / 604800,
                                1.0 / 23950080,
                                -691.0 / 653837184000,
                                1.0 / 37362124800,
                                -3617.0 / 5335311421440000,
                                43867.0 / 2554547108585472000,
                                -174611.0 / 401428831349145600000.0};
    const double r = 2 * x;
    const double square = r * r;
    return r / (2 + square * portable_internal::Polynomial(kCoth, square));
  }
  // From 22 on the result is nearer to 1 than half a unit in the last place.
  const double y = a < 22 ? 1 - 2 / (PortableExp(2 * a) + 1) : 1;
  return x < 0 ? -y : y;
}

CAPSTAN_PORTABLE double PortableLog(double x) {
  using portable_internal::kLn2High;
  using portable_internal::kLn2Low;
  using portable_internal::Polynomial;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (x != x || x == kInfinity) return x;  // NOLINT(misc-redundant-expression): a NaN
  if (x < 0) return std::numeric_limits<double>::quiet_NaN();
  if (x == 0) return -kInfinity;
  // x = 2^k (1 + f)
  int k = 0;
  const double mantissa = portable_internal::SplitExponent(x, &k);
  const double f = mantissa - 1;
  // With s = f / (2 + f): log(1 + f) = 2 atanh(s) = 2 s + 2 s^3/3 + 2 s^5/5 + ..., and 2 s = f - s
  // f. So log(1 + f) = f - (f^2/2 - s (f^2/2 + rest)). The first omitted term is below 2^-58 of the
  // whole.
  constexpr double kAtanh[] = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11,
                               2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21};
  const double s = f / (2 + f);
  const double square = s * s;
  const double rest = square * Polynomial(kAtanh, square);
  const double half = 0.5 * f * f;
  return k * kLn2High - (half - (s * (half + rest) + k * kLn2Low) - f);
}

// The sine and cosine of an angle in radians.
struct SineAndCosine {
  double sine, cosine;
};

// x| <= 2^20; NaN for every other x.
CAPSTAN_PORTABLE SineAndCosine PortableSinCos(double x) {
  using portable_internal::Pair;
  using portable_internal::Polynomial;
  if (!(x >= -0x1p20 && x <= 0x1p20)) {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    return {kNan, kNan};
  }
  // x = k pi / 2 + r, |r| <= pi / 4. The first two of the three parts of pi / 2 have 33 bits, so
  // their products with k and the first difference are exact. r = high + low.
  constexpr double kPart1 = 0x1.921fb544p+0, kPart2 = 0x1.0b4611a6p-34,
                   kPart3 = 0x1.3198a2e037073p-69, kPerQuarter = 0.63661977236758138;
  const int k = static_cast<int>(x * kPerQuarter + (x < 0 ? -0.5 : 0.5));
  const Pair difference = portable_internal::ExactSum(x - k * kPart1, -(k * kPart2));
  const double tail = difference.low - k * kPart3;
  const double high = difference.high + tail;
  const double low = (difference.high - high) + tail;
  // sin r = r - r^3/3! + ..., cos r = 1 - r^2/2! + ...; the first omitted terms are below 2^-58 of
  // the whole. The coefficients are of both series without their first two terms, divided by r^2.
  // sin(high + low) = sin high + low cos high; cos likewise.
  constexpr double kSine[] = {
      -1.0 / 6,        1.0 / 120,        -1.0 / 5040,          1.0 / 362880,
      -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
  constexpr double kCosine[] = {
      1.0 / 24,        -1.0 / 720,         1.0 / 40320,         -1.0 / 3628800,
      1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000};
  const double square = high * high;
  const double half = 0.5 * square;
  const double sine = high + (high * square * Polynomial(kSine, square) + low * (1 - half));
  const double one = 1 - half;
  const double cosine =
      one + (((1 - one) - half) + (square * square * Polynomial(kCosine, square) - high * low));
  switch (k & 3) {
    case 0:
      return {sine, cosine};
    case 1:
      return {cosine, -sine};
    case 2:
      return {-sine, -cosine};
    default:
      return {-cosine, sine};
  }
}

// x^y for finite x >= 0 and finite y. It is 1 if y is 0 or x is 1. NaN for all other arguments.
CAPSTAN_PORTABLE double PortablePow(double x, double y) {
  using portable_internal::Pair;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (!(x >= 0 && x < kInfinity && y > -kInfinity && y < kInfinity)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (y == 0 || x == 1) return 1;
  if (x == 0) return y > 0 ? 0 : kInfinity;
  const double limit = (x < 1) == (y > 0) ? 0 : kInfinity;  // of large |y|
  // |ln x| is above 2^-54 and below 2^10. So the power is at its limit, or as near to 1 as a double
  // can be.
  if (y > 0x1p80 || y < -0x1p80) return limit;
  if (y < 0x1p-80 && y > -0x1p-80) return 1;
  const Pair power = portable_internal::Multiply(portable_internal::LogOf(x), {y, 0});
  if (power.high > 709.79 || power.high < -745.14) return limit;
  return portable_internal::ExpOf(power);
}

// 1 - erf(x), which keeps its digits for large x.
CAPSTAN_PORTABLE double PortableErfc(double x) {
  using portable_internal::BitsOf;
  using portable_internal::OfBits;
  using portable_internal::Polynomial;
  if (x != x) return x;  // NOLINT(misc-redundant-expression): a NaN
  if (x < -6) return 2;  // the result is nearer to 2 than half a unit in the last place
  if (x > 27.3) return 0;
  const double a = x < 0 ? -x : x;
  if (a < 0.5) {
    // 2 / sqrt(pi) times the sum of (-1)^n x^(2n+1) / (n! (2n+1)).
    constexpr double kTwoOverSqrtPi = 1.1283791670955126;
    constexpr double kErf[] = {1.0,
                               -1.0 / 3,
                               1.0 / 10,
                               -1.0 / 42,
                               1.0 / 216,
                               -1.0 / 1320,
                               1.0 / 9360,
                               -1.0 / 75600,
                               1.0 / 685440,
                               -1.0 / 6894720,
                               1.0 / 76204800,
                               -1.0 / 918086400,
                               1.0 / 11975040000,
                               -1.0 / 168129561600};
    return 1 - kTwoOverSqrtPi * x * Polynomial(kErf, x * x);
  }
  // The trapezoidal rule of step h = 1/2 for (1 / pi) e^(-x^2) integral of x e^(-t^2) / (x^2 +
  // t^2), minus the residue of its pole. The rule's error is e^-39 of the whole. kWeights: e^(-n^2
  // / 4).
  constexpr double kWeights[] = {
      0.77880078307140488,    0.36787944117144233,    0.10539922456186433,
      0.018315638888734179,   0.0019304541362277093,  0.00012340980408667956,
      4.7851173921290088e-06, 1.1253517471925912e-07, 1.6052280551856116e-09,
      1.3887943864964021e-11, 7.2877240958196922e-14, 2.3195228302435696e-16,
      4.4777324417183015e-19};
  constexpr double kPi = 3.14159265358979323846;
  const double square = a * a;
  double sum = 0;
  for (int n = 13; n >= 1; --n) sum += kWeights[n - 1] / (square + 0.25 * n * n);
  sum = 2 * sum + 1 / square;
  // e^(-a^2), with a split in two. The first part has 26 bits, so its square is exact, and so is a
  // - first.
  const double first = OfBits(BitsOf(a) & ~((uint64_t{1} << 27) - 1));
  const double gauss = PortableExp(-first * first) * PortableExp(-(a - first) * (a + first));
  double y = gauss * (a * sum / (2 * kPi));
  if (a < 7) y -= 2 / (PortableExp(4 * kPi * a) - 1);
  return x < 0 ? 2 - y : y;
}

}  // namespace capstan::training

#undef CAPSTAN_PORTABLE

#endif  // CAPSTAN_TRAINING_MATH_PORTABLE_MATH_H_
