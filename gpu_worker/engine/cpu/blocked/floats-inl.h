// The exponential of floats, for one instruction set. A kernel file includes this file once per set,
// inside its namespace, after vectors-inl.h.

// 2^k for whole numbers k of [-126, 127].
HWY_INLINE V PowerOfTwoF(V k) {
  const hn::RebindToUnsigned<D> du;
  // After adding 1.5 * 2^23 + 127, the lowest bits are those of the biased exponent.
  const V shifted = hn::Add(k, hn::Set(d, 0x1.8p23f + 127));
  return hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));
}

// e^x for x <= 88, with an error below 2 units in the last place; 0 for x < -87, where results would
// be near the smallest normal number. x = k ln 2 + r with |r| < 0.35, and the power series of e^r up
// to r^7 / 7!; the first omitted term is below 2^-27.
HWY_INLINE V ExpF(V x) {
  const V magic = hn::Set(d, 0x1.8p23f);
  const auto there = hn::Ge(x, hn::Set(d, -87.0f));
  const V inside = hn::IfThenElseZero(there, x);
  // Rounds to the nearest whole number.
  const V k = hn::Sub(Fma(inside, hn::Set(d, 1.44269504f), magic), magic);
  // ln 2 in two parts. Products of the first part and k are exact.
  V r = Fma(k, hn::Set(d, -0x1.62ep-1f), inside);
  r = Fma(k, hn::Set(d, -0x1.0bfbe8p-15f), r);
  V y = hn::Set(d, 1.0f / 5040);
  for (const float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    y = Fma(y, r, hn::Set(d, c));
  }
  y = hn::IfThenElseZero(there, hn::Mul(y, PowerOfTwoF(k)));
  return hn::IfThenElse(hn::Eq(x, x), y, x);
}
