// Softmax and LogSoftmax along one axis. Each sample's maximum and sum go along the axis in order.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/engine/cpu/ops/softmax.cc"
#include "training/ops/softmax/softmax.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "gpu_worker/engine/cpu/blocked/instruction_sets.h"
#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "gpu_worker/engine/cpu/blocked/runs.h"
#include "hwy/foreach_target.h"  // NOLINT(build/include): must come before highway.h
#include "hwy/highway.h"
#include "training/math/portable_math.h"
#include "training/ops/places.h"

// Once, even though this file is included several times.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_OPS_SOFTMAX_LOOPS_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_OPS_SOFTMAX_LOOPS_
namespace capstan::engine {

// `size` vectors of 16 samples, `step` floats apart. y may be x, and dx may be dy.
struct SoftmaxForwardCall {
  int64_t size = 0, step = 0;
  const float* x = nullptr;
  float* y = nullptr;
};
struct SoftmaxBackwardCall {
  int64_t size = 0, step = 0;
  const float* y = nullptr;
  const float* dy = nullptr;
  float* dx = nullptr;
  bool add = false;
};
struct SoftmaxLoops {
  void (*forward)(const SoftmaxForwardCall& call);
  void (*backward)(const SoftmaxBackwardCall& call);
  void (*log_forward)(const SoftmaxForwardCall& call);
  void (*log_backward)(const SoftmaxBackwardCall& call);
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

HWY_INLINE V LargestOf(const SoftmaxForwardCall& call, const float* x) {
  V largest = hn::Load(d, x);
  for (int64_t i = 1; i < call.size; ++i) {
    const V v = hn::Load(d, x + i * call.step);
    largest = hn::IfThenElse(hn::Gt(v, largest), v, largest);
  }
  return largest;
}

void Forward(const SoftmaxForwardCall& call) {
  for (int part = 0; part < kParts; ++part) {
    const float* const x = call.x + part * kLanes;
    float* const y = call.y + part * kLanes;
    const V largest = LargestOf(call, x);
    V sum = hn::Zero(d);
    for (int64_t i = 0; i < call.size; ++i) {
      const V e = ExpF(hn::Sub(hn::Load(d, x + i * call.step), largest));
      sum = hn::Add(sum, e);
      hn::Store(e, d, y + i * call.step);
    }
    const V share = hn::Div(hn::Set(d, 1.0f), sum);
    for (int64_t i = 0; i < call.size; ++i) {
      float* const at = y + i * call.step;
      hn::Store(hn::Mul(hn::Load(d, at), share), d, at);
    }
  }
}

// dx = y * (dy - the sum of dy * y)
void Backward(const SoftmaxBackwardCall& call) {
  for (int part = 0; part < kParts; ++part) {
    const float* const y = call.y + part * kLanes;
    const float* const dy = call.dy + part * kLanes;
    float* const dx = call.dx + part * kLanes;
    V sum = hn::Zero(d);
    for (int64_t i = 0; i < call.size; ++i) {
      sum = Fma(hn::Load(d, dy + i * call.step), hn::Load(d, y + i * call.step), sum);
    }
    for (int64_t i = 0; i < call.size; ++i) {
      const V v =
          hn::Mul(hn::Load(d, y + i * call.step), hn::Sub(hn::Load(d, dy + i * call.step), sum));
      float* const at = dx + i * call.step;
      hn::Store(call.add ? hn::Add(hn::Load(d, at), v) : v, d, at);
    }
  }
}

void LogForward(const SoftmaxForwardCall& call) {
  for (int part = 0; part < kParts; ++part) {
    const float* const x = call.x + part * kLanes;
    const V largest = LargestOf(call, x);
    V sum = hn::Zero(d);
    for (int64_t i = 0; i < call.size; ++i) {
      sum = hn::Add(sum, ExpF(hn::Sub(hn::Load(d, x + i * call.step), largest)));
    }
    HWY_ALIGN float logs[kLanes];
    hn::Store(sum, d, logs);
    for (float& log : logs) log = static_cast<float>(training::PortableLog(log));
    const V log = hn::Load(d, logs);
    for (int64_t i = 0; i < call.size; ++i) {
      hn::Store(hn::Sub(hn::Sub(hn::Load(d, x + i * call.step), largest), log), d,
                call.y + part * kLanes + i * call.step);
    }
  }
}

// dx = dy - e^y * the sum of dy
void LogBackward(const SoftmaxBackwardCall& call) {
  for (int part = 0; part < kParts; ++part) {
    const float* const y = call.y + part * kLanes;
    const float* const dy = call.dy + part * kLanes;
    float* const dx = call.dx + part * kLanes;
    V sum = hn::Zero(d);
    for (int64_t i = 0; i < call.size; ++i) sum = hn::Add(sum, hn::Load(d, dy + i * call.step));
    for (int64_t i = 0; i < call.size; ++i) {
      const V v = hn::Sub(hn::Load(d, dy + i * call.step),
                          hn::Mul(ExpF(hn::Load(d, y + i * call.step)), sum));
      float* const at = dx + i * call.step;
      hn::Store(call.add ? hn::Add(hn::Load(d, at), v) : v, d, at);
    }
  }
}

constexpr SoftmaxLoops kSoftmax = {Forward, Backward, LogForward, LogBackward};

}  // namespace

const SoftmaxLoops* ThisSoftmax() { return &kSoftmax; }

}  // namespace HWY_NAMESPACE
}  // namespace capstan::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::engine {
namespace {

// The lines of a block along one axis.
class SoftmaxLines {
 public:
  SoftmaxLines(const training::Shape& shape, size_t axis)
      : size_(shape[axis]),
        step_(training::ElementsBetween(shape, axis + 1, shape.size())),
        lines_(training::Elements(shape) / size_),
        cuts_(std::min(lines_, CeilDivide(lines_ * size_ * kSideBySide, kPieceFloats))) {}

  int64_t size() const { return size_; }
  int64_t step() const { return step_ * kSideBySide; }
  std::function<int64_t(const BatchRun&)> pieces() const {
    return [cuts = cuts_](const BatchRun& run) { return run.blocks * cuts; };
  }
  // Calls visit(place of the first float) for the lines of a piece.
  template <typename Visit>
  void ForLines(int64_t piece, Visit visit) const {
    const int64_t first = piece / cuts_ * lines_ * size_, cut = piece % cuts_;
    for (int64_t i = lines_ * cut / cuts_; i < lines_ * (cut + 1) / cuts_; ++i) {
      visit((first + i / step_ * size_ * step_ + i % step_) * kSideBySide);
    }
  }

 private:
  int64_t size_, step_;  // elements
  int64_t lines_;        // of a block
  int64_t cuts_;         // of a block
};

}  // namespace

absl::StatusOr<NodePhases> MakeSoftmaxPhases(const training::Graph& graph, int node,
                                             const NodePlaces& places) {
  const training::OpInstance& op = graph.instance(node);
  const SoftmaxLines lines(op.x[0].shape, static_cast<size_t>(op.attributes.Int("axis")) - 1);
  const SoftmaxLoops& loops = *CAPSTAN_FORM_OF(ThisSoftmax, *places.math)();
  const bool log = graph.def(node).name == training::LogSoftmax::kName;
  NodePhases phases;
  phases.kernel = "lines";
  phases.forward.push_back({0, lines.pieces(),
                            [lines, places, loop = log ? loops.log_forward : loops.forward](
                                const BatchRun&, int64_t piece, char*) {
                              lines.ForLines(piece, [&](int64_t at) {
                                loop({lines.size(), lines.step(), places.x[0] + at, places.y + at});
                              });
                            }});
  if (!places.backward || places.dx[0].data == nullptr) return phases;
  phases.backward.push_back({0, lines.pieces(),
                             [lines, places, loop = log ? loops.log_backward : loops.backward](
                                 const BatchRun&, int64_t piece, char*) {
                               lines.ForLines(piece, [&](int64_t at) {
                                 loop({lines.size(), lines.step(), places.y + at, places.dy + at,
                                       places.dx[0].data + at, places.dx[0].add});
                               });
                             }});
  return phases;
}

}  // namespace capstan::engine
#endif  // HWY_ONCE
