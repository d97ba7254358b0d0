// Vectors of 16 samples for one instruction set. A kernel file includes this file once per set,
// inside its namespace.

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
constexpr D d;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kParts = 16 / kLanes;  // registers for 16 samples

// a * b + c, rounded once. Highway's MulAdd rounds twice if the instruction set has no fused form.
HWY_INLINE V Fma(V a, V b, V c) {
#if !HWY_NATIVE_FMA
  HWY_ALIGN float x[kLanes], y[kLanes], z[kLanes];
  hn::Store(a, d, x);
  hn::Store(b, d, y);
  hn::Store(c, d, z);
  for (int i = 0; i < kLanes; ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return hn::Load(d, z);
#else
  return hn::MulAdd(a, b, c);
#endif
}
