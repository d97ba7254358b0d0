// Gelu for one instruction set: math.cc includes it once for each, inside its namespace.
//
// training/math/portable_math.h and training/ops/gelu, several numbers at a time: the same additions,
// multiplications and divisions in the same order, so the bits of the reference. Branches become
// selections. Nothing is fused.

// Doubles, and as many floats.
using D64 = hn::CappedTag<double, 8>;
using V64 = hn::Vec<D64>;
constexpr D64 d64;
using DF = hn::Rebind<float, D64>;
constexpr DF df;
constexpr int64_t kDoubles = static_cast<int64_t>(hn::MaxLanes(D64()));

HWY_INLINE hn::Vec<DF> ToFloats(V64 x) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  // Highway's own keeps infinities out.
  HWY_ALIGN double from[kDoubles];
  HWY_ALIGN float to[kDoubles];
  hn::Store(x, d64, from);
  for (int64_t i = 0; i < kDoubles; ++i) to[i] = static_cast<float>(from[i]);
  return hn::LoadU(df, to);
#else
  return hn::DemoteTo(df, x);
#endif
}

// 2^k for whole numbers k of exponents.
HWY_INLINE V64 PowerOfTwo(V64 k) {
  const hn::RebindToUnsigned<D64> du;
  // Behind 1.5 * 2^52 + 1023 + k the lowest bits are those of the biased exponent.
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
  // What lies beyond is overwritten below.
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

// For |x| < 0.5.
HWY_INLINE V64 NearErfc(V64 x) {
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
  const V64 product =
      hn::Mul(hn::Mul(hn::Set(d64, 1.1283791670955126), x), Polynomial(kErf, hn::Mul(x, x)));
  return hn::Sub(hn::Set(d64, 1.0), product);
}

// For others.
HWY_INLINE V64 FarErfc(V64 x) {
  constexpr double kWeights[] = {
      0.77880078307140488,    0.36787944117144233,    0.10539922456186433,
      0.018315638888734179,   0.0019304541362277093,  0.00012340980408667956,
      4.7851173921290088e-06, 1.1253517471925912e-07, 1.6052280551856116e-09,
      1.3887943864964021e-11, 7.2877240958196922e-14, 2.3195228302435696e-16,
      4.4777324417183015e-19};
  constexpr double kPi = 3.14159265358979323846;
  const V64 one = hn::Set(d64, 1.0), two = hn::Set(d64, 2.0);
  const V64 a = hn::Abs(x), square = hn::Mul(a, a);
  V64 sum = hn::Zero(d64);
  for (int n = 13; n >= 1; --n) {
    const V64 to = hn::Add(square, hn::Set(d64, 0.25 * n * n));
    sum = hn::Add(sum, hn::Div(hn::Set(d64, kWeights[n - 1]), to));
  }
  sum = hn::Add(hn::Mul(two, sum), hn::Div(one, square));
  const hn::RebindToUnsigned<D64> du;
  const auto upper = hn::Set(du, ~((uint64_t{1} << 27) - 1));
  const V64 first = hn::BitCast(d64, hn::And(hn::BitCast(du, a), upper));
  const V64 gauss = hn::Mul(Exp(hn::Mul(hn::Neg(first), first)),
                            Exp(hn::Mul(hn::Neg(hn::Sub(a, first)), hn::Add(a, first))));
  V64 y = hn::Mul(gauss, hn::Div(hn::Mul(a, sum), hn::Set(d64, 2 * kPi)));
  const auto pole = hn::Lt(a, hn::Set(d64, 7.0));
  if (!hn::AllFalse(d64, pole)) {
    const V64 residue = hn::Div(two, hn::Sub(Exp(hn::Mul(hn::Set(d64, 4 * kPi), a)), one));
    y = hn::IfThenElse(pole, hn::Sub(y, residue), y);
  }
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d64)), hn::Sub(two, y), y);
}

HWY_INLINE V64 Erfc(V64 x) {
  const auto near = hn::Lt(hn::Abs(x), hn::Set(d64, 0.5));
  V64 y = NearErfc(x);
  if (!hn::AllTrue(d64, near)) y = hn::IfThenElse(near, y, FarErfc(x));
  y = hn::IfThenElse(hn::Lt(x, hn::Set(d64, -6.0)), hn::Set(d64, 2.0), y);
  y = hn::IfThenElse(hn::Gt(x, hn::Set(d64, 27.3)), hn::Zero(d64), y);
  return hn::IfThenElse(hn::Eq(x, x), y, x);
}

// Phi(x), and its derivative where `slope` is wanted.
template <bool kTanh>
HWY_INLINE V64 Phi(V64 x, V64* slope) {
  const double sqrt_two_over_pi = 0.79788456080286535588, cubic = 0.044715;
  const V64 zero = hn::Zero(d64), one = hn::Set(d64, 1.0);
  if (!kTanh) {
    if (slope != nullptr) {
      *slope = hn::Mul(hn::Set(d64, 0.5 * sqrt_two_over_pi),
                       Exp(hn::Mul(hn::Mul(hn::Set(d64, -0.5), x), x)));
    }
    return hn::Mul(hn::Set(d64, 0.5),
                   Erfc(hn::Mul(hn::Neg(x), hn::Set(d64, 0.70710678118654752440))));
  }
  const V64 bent = hn::Add(one, hn::Mul(hn::Mul(hn::Set(d64, cubic), x), x));
  const V64 u = hn::Mul(hn::Mul(hn::Set(d64, sqrt_two_over_pi), x), bent);
  const V64 value = hn::Div(one, hn::Add(one, Exp(hn::Mul(hn::Set(d64, -2.0), u))));
  if (slope != nullptr) {
    const V64 du = hn::Mul(hn::Set(d64, sqrt_two_over_pi),
                           hn::Add(one, hn::Mul(hn::Mul(hn::Set(d64, 3 * cubic), x), x)));
    const V64 rise = hn::Mul(hn::Mul(hn::Mul(hn::Set(d64, 2.0), value), hn::Sub(one, value)), du);
    const auto inside = hn::And(hn::Gt(value, zero), hn::Lt(value, one));
    *slope = hn::IfThenElse(inside, rise, zero);
  }
  return value;
}

template <bool kTanh>
HWY_INLINE void GeluValues(int64_t size, const float* x, float* y) {
  for (int64_t i = 0; i < size; i += kDoubles) {
    const V64 v = hn::PromoteTo(d64, hn::LoadU(df, x + i));
    hn::StoreU(ToFloats(hn::Mul(v, Phi<kTanh>(v, nullptr))), df, y + i);
  }
}

template <bool kTanh>
HWY_INLINE void GeluGradients(int64_t size, const float* x, const float* dy, float* dx, bool add) {
  for (int64_t i = 0; i < size; i += kDoubles) {
    const V64 v = hn::PromoteTo(d64, hn::LoadU(df, x + i));
    V64 slope;
    const V64 value = Phi<kTanh>(v, &slope);
    const V64 g = hn::PromoteTo(d64, hn::LoadU(df, dy + i));
    const auto d = ToFloats(hn::Mul(hn::Add(value, hn::Mul(v, slope)), g));
    hn::StoreU(add ? hn::Add(hn::LoadU(df, dx + i), d) : d, df, dx + i);
  }
}

void GeluLoop(int64_t size, const float* x, bool tanh_form, float* y) {
  if (tanh_form) {
    GeluValues<true>(size, x, y);
  } else {
    GeluValues<false>(size, x, y);
  }
}

void GeluBackwardLoop(int64_t size, const float* x, const float* dy, bool tanh_form, float* dx,
                      bool add) {
  if (tanh_form) {
    GeluGradients<true>(size, x, dy, dx, add);
  } else {
    GeluGradients<false>(size, x, dy, dx, add);
  }
}
