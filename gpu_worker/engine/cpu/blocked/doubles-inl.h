// Doubles and their exponential, for one instruction set. A kernel file includes this file once per
// set, inside its namespace.
//
// The functions are those of training/math/portable_math.h for several numbers at a time. They do
// the same additions, multiplications and divisions in the same order, so the bits are the same.
// Branches become selections. Nothing is fused.

namespace hn = hwy::HWY_NAMESPACE;
// Vectors of doubles, and of equally many floats.
using D64 = hn::CappedTag<double, 8>;
using V64 = hn::Vec<D64>;
constexpr D64 d64;
using DF = hn::Rebind<float, D64>;
constexpr DF df;
constexpr int64_t kDoubles = static_cast<int64_t>(hn::MaxLanes(D64()));

HWY_INLINE hn::Vec<DF> ToFloats(V64 x) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  // Highway's own conversion does not keep infinities.
  HWY_ALIGN double from[kDoubles];
  HWY_ALIGN float to[kDoubles];
  hn::Store(x, d64, from);
  for (int64_t i = 0; i < kDoubles; ++i) to[i] = static_cast<float>(from[i]);
  return hn::LoadU(df, to);
#else
  return hn::DemoteTo(df, x);
#endif
}

// 2^k for whole numbers k that are exponents.
HWY_INLINE V64 PowerOfTwo(V64 k) {
  const hn::RebindToUnsigned<D64> du;
  // After adding 1.5 * 2^52 + 1023, the lowest bits are those of the biased exponent.
  const V64 shifted = hn::Add(k, hn::Set(d64, 0x1.8p52 + 1023));
  return hn::BitCast(d64, hn::ShiftLeft<52>(hn::BitCast(du, shifted)));
}

// c[0] + c[1] x + ...
template <int kSize>
HWY_INLINE V64 Polynomial(const double (&c)[kSize], V64 x) {
  V64 sum = hn::Set(d64, c[kSize - 1]);
  for (int i = kSize - 2; i >= 0; --i) sum = hn::Add(hn::Mul(sum, x), hn::Set(d64, c[i]));
  return sum;
}

HWY_INLINE V64 Exp(V64 x) {
  const V64 zero = hn::Zero(d64), one = hn::Set(d64, 1.0), two = hn::Set(d64, 2.0);
  const V64 half = hn::IfThenElse(hn::Lt(x, zero), hn::Set(d64, -0.5), hn::Set(d64, 0.5));
  V64 k = hn::Trunc(hn::Add(hn::Mul(x, hn::Set(d64, 1.4426950408889634)), half));
  // Results for exponents beyond these limits are overwritten below.
  k = hn::Min(hn::Max(k, hn::Set(d64, -1075.0)), hn::Set(d64, 1024.0));
  const V64 high = hn::Sub(x, hn::Mul(k, hn::Set(d64, 0x1.62e42feep-1)));
  const V64 low = hn::Mul(k, hn::Set(d64, 0x1.a39ef35793c76p-33));
  const V64 r = hn::Sub(high, low);
  constexpr double kCoth[] = {1.0 / 6,       -1.0 / 360,     1.0 / 15120,
                              -1.0 / 604800, 1.0 / 23950080, -691.0 / 653837184000};
  const V64 square = hn::Mul(r, r);
  const V64 c = hn::Sub(r, hn::Mul(square, Polynomial(kCoth, square)));
  const V64 quotient = hn::Div(hn::Mul(r, c), hn::Sub(two, c));
  const V64 y = hn::Add(one, hn::Add(hn::Sub(quotient, low), high));
  const V64 most = hn::Set(d64, 1023.0);
  V64 first = hn::Min(k, most);
  first = hn::IfThenElse(hn::Lt(k, hn::Set(d64, -1022.0)), hn::Add(k, hn::Set(d64, 1000.0)), first);
  V64 e = hn::Mul(hn::Mul(y, PowerOfTwo(first)), PowerOfTwo(hn::Sub(k, first)));
  e = hn::IfThenElse(hn::Gt(x, hn::Set(d64, 709.79)),
                     hn::Set(d64, std::numeric_limits<double>::infinity()), e);
  e = hn::IfThenElse(hn::Lt(x, hn::Set(d64, -745.14)), zero, e);
  return hn::IfThenElse(hn::Eq(x, x), e, x);
}
