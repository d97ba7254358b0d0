// LRN in double: each sample's sum over the neighbours of a channel, and its power as e^(-beta ln s).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/engine/cpu/ops/lrn.cc"
#include "training/ops/lrn/lrn.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "gpu_worker/engine/cpu/blocked/instruction_sets.h"
#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "gpu_worker/engine/cpu/blocked/runs.h"
#include "hwy/foreach_target.h"  // NOLINT(build/include): must come before highway.h
#include "hwy/highway.h"
#include "training/ops/places.h"

// Once, even though this file is included several times.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_OPS_LRN_LOOPS_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_OPS_LRN_LOOPS_
namespace capstan::engine {

// One place in all channels, which lie `step` floats apart. With s = bias + share * the sum of x^2
// over the channels from c - before to c + behind: y = x s^-beta.
struct LrnCall {
  int64_t channels = 0, step = 0;
  int64_t before = 0, behind = 0;
  double bias = 0, share = 0, beta = 0;
  const float* x = nullptr;
  float* y = nullptr;
  const float* dy = nullptr;  // null: forward
  float* dx = nullptr;
  bool add = false;
  double* powers = nullptr;    // [channels][16] of scratch, for backward
  double* products = nullptr;  // likewise
};

}  // namespace capstan::engine
#endif

HWY_BEFORE_NAMESPACE();
namespace capstan::engine {
namespace HWY_NAMESPACE {
namespace {

#include "gpu_worker/engine/cpu/blocked/doubles-inl.h"

// ln x for normal numbers above 0, as PortableLog.
HWY_INLINE V64 Log(V64 x) {
  const hn::RebindToUnsigned<D64> du;
  const auto bits = hn::BitCast(du, x);
  // 2^52 + k has the biased exponent k as its lowest bits.
  const V64 biased =
      hn::BitCast(d64, hn::Or(hn::ShiftRight<52>(bits), hn::Set(du, uint64_t{0x433} << 52)));
  V64 k = hn::Sub(biased, hn::Set(d64, 0x1p52 + 1022));
  const auto fraction = hn::And(bits, hn::Set(du, (uint64_t{1} << 52) - 1));
  V64 mantissa = hn::BitCast(d64, hn::Or(fraction, hn::Set(du, uint64_t{1022} << 52)));
  const V64 one = hn::Set(d64, 1.0), half = hn::Set(d64, 0.5);
  const auto small = hn::Lt(mantissa, hn::Set(d64, 0.70710678118654752440));
  mantissa = hn::IfThenElse(small, hn::Add(mantissa, mantissa), mantissa);
  k = hn::IfThenElse(small, hn::Sub(k, one), k);
  const V64 f = hn::Sub(mantissa, one);
  constexpr double kAtanh[] = {2.0 / 3,  2.0 / 5,  2.0 / 7,  2.0 / 9,  2.0 / 11,
                               2.0 / 13, 2.0 / 15, 2.0 / 17, 2.0 / 19, 2.0 / 21};
  const V64 s = hn::Div(f, hn::Add(hn::Set(d64, 2.0), f));
  const V64 square = hn::Mul(s, s);
  const V64 rest = hn::Mul(square, Polynomial(kAtanh, square));
  const V64 half_square = hn::Mul(hn::Mul(half, f), f);
  const V64 high = hn::Mul(k, hn::Set(d64, 0x1.62e42feep-1));
  const V64 low = hn::Mul(k, hn::Set(d64, 0x1.a39ef35793c76p-33));
  const V64 middle = hn::Add(hn::Mul(s, hn::Add(half_square, rest)), low);
  return hn::Sub(high, hn::Sub(hn::Sub(half_square, middle), f));
}

HWY_INLINE V64 Doubles(const float* at) { return hn::PromoteTo(d64, hn::LoadU(df, at)); }

// s of a channel. At the place of 16 samples that begins with `x`.
HWY_INLINE V64 SumOf(const LrnCall& call, const float* x, int64_t channel) {
  const int64_t last = HWY_MIN(call.channels - 1, channel + call.behind);
  V64 sum = hn::Zero(d64);
  for (int64_t i = HWY_MAX(0, channel - call.before); i <= last; ++i) {
    const V64 v = Doubles(x + i * call.step);
    sum = hn::Add(sum, hn::Mul(v, v));
  }
  return hn::Add(hn::Set(d64, call.bias), hn::Mul(hn::Set(d64, call.share), sum));
}

// s^-beta; a NaN if s is not finite.
HWY_INLINE V64 PowerOf(const LrnCall& call, V64 s) {
  const V64 infinity = hn::Set(d64, std::numeric_limits<double>::infinity());
  const V64 nan = hn::Set(d64, std::numeric_limits<double>::quiet_NaN());
  const V64 power = Exp(hn::Mul(hn::Set(d64, -call.beta), Log(s)));
  return hn::IfThenElse(hn::Lt(s, infinity), power, nan);
}

void Lrn(const LrnCall& call) {
  const V64 factor = hn::Set(d64, 2 * call.beta * call.share);
  for (int64_t l = 0; l < kSideBySide; l += kDoubles) {
    const float* const x = call.x + l;
    for (int64_t c = 0; c < call.channels; ++c) {
      const V64 s = SumOf(call, x, c), power = PowerOf(call, s);
      const V64 v = Doubles(x + c * call.step);
      if (call.dy == nullptr) {
        hn::StoreU(ToFloats(hn::Mul(v, power)), df, call.y + c * call.step + l);
        continue;
      }
      const V64 product = hn::Mul(Doubles(call.dy + c * call.step + l), v);
      hn::StoreU(power, d64, call.powers + c * kSideBySide + l);
      hn::StoreU(hn::Mul(product, hn::Div(power, s)), d64, call.products + c * kSideBySide + l);
    }
    for (int64_t c = 0; call.dy != nullptr && c < call.channels; ++c) {
      // The neighbours of a channel are those that have it as a neighbour.
      const int64_t last = HWY_MIN(call.channels - 1, c + call.before);
      V64 others = hn::Zero(d64);
      for (int64_t i = HWY_MAX(0, c - call.behind); i <= last; ++i) {
        others = hn::Add(others, hn::LoadU(d64, call.products + i * kSideBySide + l));
      }
      const V64 own = hn::Mul(Doubles(call.dy + c * call.step + l),
                              hn::LoadU(d64, call.powers + c * kSideBySide + l));
      const V64 v = hn::Mul(hn::Mul(factor, Doubles(x + c * call.step)), others);
      float* const dx = call.dx + c * call.step + l;
      const V64 gradient = hn::Sub(own, v);
      hn::StoreU(ToFloats(call.add ? hn::Add(Doubles(dx), gradient) : gradient), df, dx);
    }
  }
}

}  // namespace

void RunLrn(const LrnCall& call) { Lrn(call); }

}  // namespace HWY_NAMESPACE
}  // namespace capstan::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::engine {

absl::StatusOr<NodePhases> MakeLrnPhases(const training::Graph& graph, int node,
                                         const NodePlaces& places) {
  const training::OpInstance& op = graph.instance(node);
  const training::LRN lrn = training::LRN::Read(op.attributes);
  const training::Shape& shape = op.x[0].shape;
  LrnCall of;
  of.channels = shape[0];
  const int64_t pixels = training::ElementsBetween(shape, 1, shape.size());
  of.step = pixels * kSideBySide;
  of.before = std::min(of.channels, (lrn.size - 1) / 2);
  of.behind = std::min(of.channels, lrn.size / 2);
  of.bias = lrn.bias;
  of.share = lrn.alpha / static_cast<double>(lrn.size);
  of.beta = lrn.beta;
  const int64_t cuts = std::min(pixels, CeilDivide(of.channels * of.step, kPieceFloats));
  const auto pieces = [cuts](const BatchRun& run) { return run.blocks * cuts; };
  // Calls visit(place of the first channel) for the pixels of a piece.
  const auto for_pixels = [cuts, pixels, of](int64_t piece, auto visit) {
    const int64_t first = piece / cuts * of.channels * of.step, cut = piece % cuts;
    for (int64_t i = pixels * cut / cuts; i < pixels * (cut + 1) / cuts; ++i) {
      visit(first + i * kSideBySide);
    }
  };
  void (*const loop)(const LrnCall&) = CAPSTAN_FORM_OF(RunLrn, *places.math);
  NodePhases phases;
  phases.kernel = "channels";
  phases.forward.push_back({0, pieces, [=](const BatchRun&, int64_t piece, char*) {
                              for_pixels(piece, [&](int64_t at) {
                                LrnCall call = of;
                                call.x = places.x[0] + at;
                                call.y = places.y + at;
                                loop(call);
                              });
                            }});
  if (!places.backward || places.dx[0].data == nullptr) return phases;
  const int64_t doubles = of.channels * kSideBySide;
  phases.backward.push_back(
      {2 * doubles * 8, pieces, [=](const BatchRun&, int64_t piece, char* scratch) {
         for_pixels(piece, [&](int64_t at) {
           LrnCall call = of;
           call.x = places.x[0] + at;
           call.dy = places.dy + at;
           call.dx = places.dx[0].data + at;
           call.add = places.dx[0].add;
           call.powers = reinterpret_cast<double*>(scratch);
           call.products = call.powers + doubles;
           loop(call);
         });
       }});
  return phases;
}

}  // namespace capstan::engine
#endif  // HWY_ONCE
