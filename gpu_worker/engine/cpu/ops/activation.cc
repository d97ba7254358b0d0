// Sigmoid, Tanh, LeakyRelu and Clip, with the bits of the references in training/ops/activation.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/engine/cpu/ops/activation.cc"
#include "training/ops/activation/activation.h"

#include <cstdint>
#include <limits>

#include "gpu_worker/engine/cpu/blocked/instruction_sets.h"
#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "gpu_worker/engine/cpu/blocked/runs.h"
#include "hwy/foreach_target.h"  // NOLINT(build/include): must come before highway.h
#include "hwy/highway.h"

// Once, even though this file is included several times.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_OPS_ACTIVATION_LOOPS_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_OPS_ACTIVATION_LOOPS_
namespace capstan::engine {
enum class Activation { kSigmoid, kTanh, kLeakyRelu, kClip };

struct ActivationCall {
  Activation of = Activation::kSigmoid;
  double first = 0, second = 0;  // LeakyRelu's alpha; Clip's bounds
  int64_t size = 0;
  const float* from = nullptr;  // forward: x; backward: y of Sigmoid and Tanh, else x
  const float* dy = nullptr;    // null: forward
  float* to = nullptr;          // may be `from` in forward, and dy in backward
  bool add = false;             // backward: to the old values
};
}  // namespace capstan::engine
#endif

HWY_BEFORE_NAMESPACE();
namespace capstan::engine {
namespace HWY_NAMESPACE {
namespace {

#include "gpu_worker/engine/cpu/blocked/doubles-inl.h"

// The form of PortableTanh for |x| < 0.5, and that for all other x.
HWY_INLINE V64 NearTanh(V64 x) {
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
  const V64 two = hn::Set(d64, 2.0);
  const V64 r = hn::Mul(two, x), square = hn::Mul(r, r);
  return hn::Div(r, hn::Add(two, hn::Mul(square, Polynomial(kCoth, square))));
}
HWY_INLINE V64 FarTanh(V64 x, V64 a) {
  const V64 one = hn::Set(d64, 1.0), two = hn::Set(d64, 2.0);
  V64 y = hn::Sub(one, hn::Div(two, hn::Add(Exp(hn::Mul(two, a)), one)));
  y = hn::IfThenElse(hn::Lt(a, hn::Set(d64, 22.0)), y, one);
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d64)), hn::Neg(y), y);
}
HWY_INLINE V64 TanhValue(V64 x) {
  const V64 a = hn::Abs(x);
  const auto near = hn::Lt(a, hn::Set(d64, 0.5));
  V64 y = NearTanh(x);
  if (!hn::AllTrue(d64, near)) y = hn::IfThenElse(near, y, FarTanh(x, a));
  return hn::IfThenElse(hn::Eq(x, x), y, x);
}

// to = value(from), or to = (add ? to : 0) + value(from) * dy.
template <typename Value>
HWY_INLINE void Loop(const ActivationCall& call, Value value) {
  for (int64_t i = 0; i < call.size; i += kDoubles) {
    V64 v = value(hn::PromoteTo(d64, hn::LoadU(df, call.from + i)));
    if (call.dy != nullptr) v = hn::Mul(v, hn::PromoteTo(d64, hn::LoadU(df, call.dy + i)));
    if (call.add) v = hn::Add(hn::PromoteTo(d64, hn::LoadU(df, call.to + i)), v);
    hn::StoreU(ToFloats(v), df, call.to + i);
  }
}

void ActivationLoop(const ActivationCall& call) {
  const V64 one = hn::Set(d64, 1.0), zero = hn::Zero(d64);
  const V64 first = hn::Set(d64, call.first), second = hn::Set(d64, call.second);
  switch (call.of) {
    case Activation::kSigmoid:
      if (call.dy != nullptr) {
        return Loop(call, [&](V64 y) HWY_ATTR { return hn::Mul(y, hn::Sub(one, y)); });
      }
      return Loop(call,
                  [&](V64 x) HWY_ATTR { return hn::Div(one, hn::Add(one, Exp(hn::Neg(x)))); });
    case Activation::kTanh:
      if (call.dy != nullptr) {
        return Loop(call, [&](V64 y) HWY_ATTR { return hn::Sub(one, hn::Mul(y, y)); });
      }
      return Loop(call, [](V64 x) HWY_ATTR { return TanhValue(x); });
    case Activation::kLeakyRelu:
      if (call.dy != nullptr) {
        return Loop(call,
                    [&](V64 x) HWY_ATTR { return hn::IfThenElse(hn::Gt(x, zero), one, first); });
      }
      return Loop(call, [&](V64 x) HWY_ATTR {
        return hn::IfThenElse(hn::Lt(x, zero), hn::Mul(first, x), x);
      });
    case Activation::kClip:
      if (call.dy != nullptr) {
        return Loop(call, [&](V64 x) HWY_ATTR {
          return hn::IfThenElseZero(hn::And(hn::Ge(x, first), hn::Le(x, second)), one);
        });
      }
      return Loop(call, [&](V64 x) HWY_ATTR {
        const V64 low = hn::IfThenElse(hn::Lt(x, first), first, x);
        return hn::IfThenElse(hn::Gt(x, second), second, low);
      });
  }
}

}  // namespace

void RunActivation(const ActivationCall& call) { ActivationLoop(call); }

}  // namespace HWY_NAMESPACE
}  // namespace capstan::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::engine {
namespace {

ActivationCall CallOf(const training::OpInstance& op, const std::string& name) {
  ActivationCall call;
  if (name == training::Tanh::kName) {
    call.of = Activation::kTanh;
  } else if (name == training::LeakyRelu::kName) {
    call.of = Activation::kLeakyRelu;
    call.first = training::LeakyRelu::Read(op.attributes).alpha;
  } else if (name == training::Clip::kName) {
    const training::Clip clip = training::Clip::Read(op.attributes);
    call.of = Activation::kClip;
    call.first = clip.min;
    call.second = clip.max;
  }
  return call;
}

}  // namespace

absl::StatusOr<NodePhases> MakeActivationPhases(const training::Graph& graph, int node,
                                                const NodePlaces& places) {
  const Runs runs = RunsOf(graph, node);
  const ActivationCall of = CallOf(graph.instance(node), graph.def(node).name);
  const bool reads_y = graph.def(node).reads.y;
  void (*const loop)(const ActivationCall&) = CAPSTAN_FORM_OF(RunActivation, *places.math);
  NodePhases phases;
  phases.kernel = "pointwise";
  phases.forward.push_back(
      {0, runs.pieces(), [runs, places, of, loop](const BatchRun& run, int64_t piece, char*) {
         runs.Visited(run, piece, [&](int64_t first, int64_t size) {
           ActivationCall call = of;
           call.size = size;
           call.from = places.x[0] + first;
           call.to = places.y + first;
           loop(call);
         });
       }});
  if (!places.backward || places.dx[0].data == nullptr) return phases;
  phases.backward.push_back(
      {0, runs.pieces(),
       [runs, places, of, loop, reads_y](const BatchRun& run, int64_t piece, char*) {
         runs.Visited(run, piece, [&](int64_t first, int64_t size) {
           ActivationCall call = of;
           call.size = size;
           call.from = (reads_y ? places.y : places.x[0]) + first;
           call.dy = places.dy + first;
           call.to = places.dx[0].data + first;
           call.add = places.dx[0].add;
           loop(call);
         });
       }});
  return phases;
}

}  // namespace capstan::engine
#endif  // HWY_ONCE
