// Loops of strided.h, compiled once for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/engine/cpu/blocked/strided.cc"
#include "gpu_worker/engine/cpu/blocked/strided.h"

#include <cmath>

#include "gpu_worker/engine/cpu/blocked/instruction_sets.h"
#include "hwy/foreach_target.h"  // NOLINT(build/include): must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::engine {
namespace HWY_NAMESPACE {
namespace {

#include "gpu_worker/engine/cpu/blocked/vectors-inl.h"

HWY_INLINE V Of(const StridedOperand& x, int64_t i, int part) {
  const float* const at = x.at + i * x.step;
  return x.number ? hn::Set(d, *at) : hn::Load(d, at + part * kLanes);
}

template <typename Value>
HWY_INLINE void BinaryLoop(const BinaryCall& call, Value value) {
  for (int64_t i = 0; i < call.count; ++i) {
    for (int part = 0; part < kParts; ++part) {
      hn::Store(value(Of(call.a, i, part), Of(call.b, i, part)), d,
                call.y + i * 16 + part * kLanes);
    }
  }
}

void Binary(const BinaryCall& call) {
  switch (call.op) {
    case BinaryOp::kAdd:
      return BinaryLoop(call, [](V a, V b) HWY_ATTR { return hn::Add(a, b); });
    case BinaryOp::kSub:
      return BinaryLoop(call, [](V a, V b) HWY_ATTR { return hn::Sub(a, b); });
    case BinaryOp::kMul:
      return BinaryLoop(call, [](V a, V b) HWY_ATTR { return hn::Mul(a, b); });
    case BinaryOp::kDiv:
      return BinaryLoop(call, [](V a, V b) HWY_ATTR { return hn::Div(a, b); });
  }
}

template <typename Value>
HWY_INLINE void TermLoop(const TermCall& call, Value value) {
  for (int part = 0; part < kParts; ++part) {
    float* const to = call.to + part * kLanes;
    if (call.to_step == 0) {
      V sum = hn::Zero(d);
      for (int64_t i = 0; i < call.count; ++i) sum = hn::Add(sum, value(i, part));
      hn::Store(call.add ? hn::Add(hn::Load(d, to), sum) : sum, d, to);
      continue;
    }
    for (int64_t i = 0; i < call.count; ++i) {
      float* const at = to + i * call.to_step;
      const V v = value(i, part);
      hn::Store(call.add ? hn::Add(hn::Load(d, at), v) : v, d, at);
    }
  }
}

void TermOf(const TermCall& call) {
  switch (call.term) {
    case Term::kSame:
      return TermLoop(call, [&](int64_t i, int part) HWY_ATTR { return Of(call.dy, i, part); });
    case Term::kNegated:
      return TermLoop(call,
                      [&](int64_t i, int part) HWY_ATTR { return hn::Neg(Of(call.dy, i, part)); });
    case Term::kTimes:
      return TermLoop(call, [&](int64_t i, int part) HWY_ATTR {
        return hn::Mul(Of(call.dy, i, part), Of(call.a, i, part));
      });
    case Term::kOver:
      return TermLoop(call, [&](int64_t i, int part) HWY_ATTR {
        return hn::Div(Of(call.dy, i, part), Of(call.a, i, part));
      });
    case Term::kOfDivisor:
      return TermLoop(call, [&](int64_t i, int part) HWY_ATTR {
        const V a = Of(call.a, i, part);
        const V quotient = hn::Div(Of(call.b, i, part), a);
        return hn::Div(hn::Mul(hn::Neg(Of(call.dy, i, part)), quotient), a);
      });
  }
}

constexpr StridedLoops kStrided = {Binary, TermOf};

}  // namespace

const StridedLoops* ThisStrided() { return &kStrided; }

}  // namespace HWY_NAMESPACE
}  // namespace capstan::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::engine {

const StridedLoops& StridedLoopsOf(const BlockedMath& math) {
  return *CAPSTAN_FORM_OF(ThisStrided, math)();
}

}  // namespace capstan::engine
#endif  // HWY_ONCE
