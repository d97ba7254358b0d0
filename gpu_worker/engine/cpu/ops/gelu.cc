// Gelu: x Phi(x), in float.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/engine/cpu/ops/gelu.cc"
#include "training/ops/gelu/gelu.h"

#include <cmath>
#include <cstdint>

#include "gpu_worker/engine/cpu/blocked/instruction_sets.h"
#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "gpu_worker/engine/cpu/blocked/runs.h"
#include "hwy/foreach_target.h"  // NOLINT(build/include): must come before highway.h
#include "hwy/highway.h"

// Once, even though this file is included several times.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_OPS_GELU_LOOPS_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_OPS_GELU_LOOPS_
namespace capstan::engine {
struct GeluLoops {
  // y = x Phi(x), Phi by its definition or by tanh. y may be x.
  void (*forward)(int64_t size, const float* x, bool tanh_form, float* y);
  // dx = (add ? dx : 0) + dy * (the derivative at x). dx may be dy.
  void (*backward)(int64_t size, const float* x, const float* dy, bool tanh_form, float* dx,
                   bool add);
};
}  // namespace capstan::engine
#endif

HWY_BEFORE_NAMESPACE();
namespace capstan::engine {
namespace HWY_NAMESPACE {
namespace {

#include "gpu_worker/engine/cpu/blocked/vectors-inl.h"
// Uses the vectors above.
#include "gpu_worker/engine/cpu/blocked/floats-inl.h"

// Phi(x), and its derivative if `slope` is not null. For u = |x|:
//   Phi(-u) = e^(-u^2 / 2) t P(t) with t = 1 / (1 + 0.3 u)
// where P is the polynomial through the Chebyshev points of u in [0, 14]. Its relative error is below
// 5e-9. Beyond 14 the power is 0.
HWY_INLINE V NormalPhi(V x, V* slope) {
  const V one = hn::Set(d, 1.0f), half = hn::Set(d, 0.5f);
  const V u = hn::Min(hn::Abs(x), hn::Set(d, 14.0f));
  const V t = hn::Div(one, Fma(u, hn::Set(d, 0.3f), one));
  V sum = hn::Set(d, -0.020914359720613233f);
  for (const float c : {0.11404027204056018f, -0.2320384828827947f, 0.19694067697681128f,
                        -0.08374254900716174f, 0.09848074019126085f, 0.07758906437013002f,
                        0.11040517984923649f, 0.11955176322826765f, 0.11968769314521152f}) {
    sum = Fma(sum, t, hn::Set(d, c));
  }
  // u^2 in two parts, because a power enlarges the rounding error of its exponent.
  const V square = hn::Mul(u, u), low = Fma(u, u, hn::Neg(square));
  const V power = hn::Mul(ExpF(hn::Mul(square, hn::Neg(half))), Fma(low, hn::Neg(half), one));
  if (slope != nullptr) *slope = hn::Mul(power, hn::Set(d, 0.39894228040143268f));
  const V below = hn::Mul(power, hn::Mul(t, sum));
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), below, hn::Sub(one, below));
}

// (1 + tanh u) / 2 = 1 / (1 + e^-2u) in place of Phi.
HWY_INLINE V TanhPhi(V x, V* slope) {
  const V one = hn::Set(d, 1.0f);
  const V scale = hn::Set(d, 0.79788456080286535588f);
  const V square = hn::Mul(x, x);
  const V u = hn::Mul(hn::Mul(scale, x), Fma(square, hn::Set(d, 0.044715f), one));
  const V power = hn::Mul(u, hn::Set(d, -2.0f));
  const auto there = hn::Lt(power, hn::Set(d, 87.0f));
  const V e = ExpF(hn::IfThenElseZero(there, power));
  const V share = hn::Div(one, hn::Add(one, e));
  if (slope != nullptr) {
    const V du = hn::Mul(scale, Fma(square, hn::Set(d, 3 * 0.044715f), one));
    // 2 value (1 - value) du. Where the power is 0 or very large, the slope is 0, but du may be
    // infinite.
    const V rise = hn::Mul(hn::Mul(hn::Mul(e, share), hn::Add(share, share)), du);
    const auto inside = hn::And(there, hn::Gt(power, hn::Set(d, -87.0f)));
    *slope = hn::IfThenElseZero(inside, rise);
  }
  return hn::IfThenElseZero(there, share);
}

template <bool kTanh>
HWY_INLINE V Phi(V x, V* slope) {
  return kTanh ? TanhPhi(x, slope) : NormalPhi(x, slope);
}

template <bool kTanh>
HWY_INLINE void GeluValues(int64_t size, const float* x, float* y) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const V v = hn::Load(d, x + i);
    hn::Store(hn::Mul(v, Phi<kTanh>(v, nullptr)), d, y + i);
  }
}

template <bool kTanh>
HWY_INLINE void GeluGradients(int64_t size, const float* x, const float* dy, float* dx, bool add) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const V v = hn::Load(d, x + i);
    V slope;
    const V value = Phi<kTanh>(v, &slope);
    const V gradient = hn::Mul(hn::Load(d, dy + i), hn::Add(value, hn::Mul(v, slope)));
    hn::Store(add ? hn::Add(hn::Load(d, dx + i), gradient) : gradient, d, dx + i);
  }
}

void GeluForward(int64_t size, const float* x, bool tanh_form, float* y) {
  if (tanh_form) {
    GeluValues<true>(size, x, y);
  } else {
    GeluValues<false>(size, x, y);
  }
}

void GeluBackward(int64_t size, const float* x, const float* dy, bool tanh_form, float* dx,
                  bool add) {
  if (tanh_form) {
    GeluGradients<true>(size, x, dy, dx, add);
  } else {
    GeluGradients<false>(size, x, dy, dx, add);
  }
}

}  // namespace

const GeluLoops* ThisGelu() {
  static constexpr GeluLoops kLoops = {GeluForward, GeluBackward};
  return &kLoops;
}

}  // namespace HWY_NAMESPACE
}  // namespace capstan::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::engine {

absl::StatusOr<NodePhases> MakeGeluPhases(const training::Graph& graph, int node,
                                          const NodePlaces& places) {
  const Runs runs = RunsOf(graph, node);
  const bool tanh_form =
      training::Gelu::Read(graph.instance(node).attributes).approximate == "tanh";
  const GeluLoops loops = *CAPSTAN_FORM_OF(ThisGelu, *places.math)();
  NodePhases phases;
  phases.kernel = "pointwise";
  phases.forward.push_back(
      {0, runs.pieces(),
       [runs, places, loops, tanh_form](const BatchRun& run, int64_t piece, char*) {
         runs.Visited(run, piece, [&](int64_t first, int64_t size) {
           loops.forward(size, places.x[0] + first, tanh_form, places.y + first);
         });
       }});
  if (places.backward && places.dx[0].data != nullptr) {
    phases.backward.push_back(
        {0, runs.pieces(),
         [runs, places, loops, tanh_form](const BatchRun& run, int64_t piece, char*) {
           runs.Visited(run, piece, [&](int64_t first, int64_t size) {
             loops.backward(size, places.x[0] + first, places.dy + first, tanh_form,
                            places.dx[0].data + first, places.dx[0].add);
           });
         }});
  }
  return phases;
}

}  // namespace capstan::engine
#endif  // HWY_ONCE
