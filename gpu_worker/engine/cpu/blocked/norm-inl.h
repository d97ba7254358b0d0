// Loops of batch normalization, alone and with the operators after it; part of math.cc, once per
// instruction set.

void Normalize(const NormalizeCall& call) {
  const V m = hn::Set(d, call.mean), s = hn::Set(d, call.scale), b = hn::Set(d, call.shift);
  for (int64_t i = 0; i < call.size; i += kLanes) {
    V v = Fma(hn::Sub(hn::Load(d, call.x + i), m), s, b);
    if (call.other != nullptr) v = hn::Add(v, hn::Load(d, call.other + i));
    hn::Store(call.relu ? ReluOf(v) : v, d, call.y + i);
  }
}

// The gradient that passes the Relu. `y` is only read if there is a Relu.
template <bool kRelu>
HWY_INLINE V BehindRelu(const float* y, const float* dy, int64_t i) {
  if constexpr (!kRelu) return hn::Load(d, dy + i);
  return hn::IfThenElseZero(hn::Gt(hn::Load(d, y + i), hn::Zero(d)), hn::Load(d, dy + i));
}

template <bool kRelu>
HWY_INLINE void NormalizeSumsOf(const NormalizeSumsCall& call) {
  const V m = hn::Set(d, call.mean);
  for (int part = 0; part < kParts; ++part) {
    V sum = hn::Zero(d), product = hn::Zero(d);
    for (int64_t i = part * kLanes; i < call.size; i += 16) {
      const V dz = BehindRelu<kRelu>(call.y, call.dy, i);
      sum = hn::Add(sum, dz);
      product = Fma(dz, hn::Sub(hn::Load(d, call.x + i), m), product);
    }
    hn::StoreU(sum, d, call.sums + part * kLanes);
    hn::StoreU(product, d, call.products + part * kLanes);
  }
}

void NormalizeSums(const NormalizeSumsCall& call) {
  return call.y != nullptr ? NormalizeSumsOf<true>(call) : NormalizeSumsOf<false>(call);
}

template <bool kRelu>
HWY_INLINE void NormalizeBackwardOf(const NormalizeBackwardCall& call) {
  const V m = hn::Set(d, call.mean), a = hn::Set(d, call.a), b = hn::Set(d, call.b);
  const V c = hn::Set(d, call.c);
  for (int64_t i = 0; i < call.size; i += kLanes) {
    const V dz = BehindRelu<kRelu>(call.y, call.dy, i);
    if (call.dx != nullptr) {
      const V v = Fma(dz, a, Fma(hn::Sub(hn::Load(d, call.x + i), m), b, c));
      hn::Store(call.add ? hn::Add(hn::Load(d, call.dx + i), v) : v, d, call.dx + i);
    }
    if (call.other != nullptr) {
      const V there = call.add_other ? hn::Add(hn::Load(d, call.other + i), dz) : dz;
      hn::Store(there, d, call.other + i);
    }
  }
}

void NormalizeBackward(const NormalizeBackwardCall& call) {
  return call.y != nullptr ? NormalizeBackwardOf<true>(call) : NormalizeBackwardOf<false>(call);
}
