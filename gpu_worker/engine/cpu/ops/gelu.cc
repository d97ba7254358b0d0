// Gelu: x Phi(x), with the bits of the reference in training/ops/gelu.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/engine/cpu/ops/gelu.cc"
#include "training/ops/gelu/gelu.h"

#include <cstdint>
#include <limits>

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

#include "gpu_worker/engine/cpu/blocked/doubles-inl.h"

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

// For all other x.
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

// Phi(x), and its derivative if `slope` is not null.
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
