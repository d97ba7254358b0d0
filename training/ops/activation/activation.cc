#include "training/ops/activation/activation.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/math/portable_math.h"
#include "training/ops/infer.h"

namespace capstan::training {
namespace {

constexpr double kMostFloat = std::numeric_limits<float>::max();

// y = value(x)
template <typename T, typename Value>
void PointwiseForward(const ForwardCall<T>& call, Value value) {
  const int64_t size = call.samples.count * Elements(call.op.x[0].shape);
  for (int64_t i = 0; i < size; ++i) {
    call.y[i] = static_cast<T>(value(static_cast<double>(call.x[0][i])));
  }
}

// dx += slope(from) * dy, where `from` is x or y.
template <typename T, typename Slope>
void PointwiseBackward(const BackwardCall<T>& call, const T* from, Slope slope) {
  const int64_t size = call.samples.count * Elements(call.op.x[0].shape);
  for (int64_t i = 0; i < size; ++i) {
    const double d = slope(static_cast<double>(from[i])) * static_cast<double>(call.dy[i]);
    call.dx[0][i] = static_cast<T>(static_cast<double>(call.dx[0][i]) + d);
  }
}

template <typename T>
void SigmoidForward(const ForwardCall<T>& call) {
  PointwiseForward(call, [](double x) { return 1 / (1 + PortableExp(-x)); });
}
template <typename T>
void SigmoidBackward(const BackwardCall<T>& call) {
  PointwiseBackward(call, call.y, [](double y) { return y * (1 - y); });
}

template <typename T>
void TanhForward(const ForwardCall<T>& call) {
  PointwiseForward(call, PortableTanh);
}
template <typename T>
void TanhBackward(const BackwardCall<T>& call) {
  PointwiseBackward(call, call.y, [](double y) { return 1 - y * y; });
}

absl::StatusOr<Inference> InferLeakyRelu(absl::Span<const ValueType> x, Attributes& attributes) {
  const absl::Status alpha = CheckNumber(attributes, "alpha", -kMostFloat, kMostFloat);
  if (!alpha.ok()) return alpha;
  return InferSameShape(x, attributes);
}

template <typename T>
void LeakyReluForward(const ForwardCall<T>& call) {
  const double alpha = LeakyRelu::Read(call.op.attributes).alpha;
  PointwiseForward(call, [alpha](double x) { return x < 0 ? alpha * x : x; });
}
template <typename T>
void LeakyReluBackward(const BackwardCall<T>& call) {
  const double alpha = LeakyRelu::Read(call.op.attributes).alpha;
  PointwiseBackward(call, call.x[0], [alpha](double x) { return x > 0 ? 1 : alpha; });
}

absl::StatusOr<Inference> InferClip(absl::Span<const ValueType> x, Attributes& attributes) {
  for (const char* const name : {"min", "max"}) {
    const absl::Status bound = CheckNumber(attributes, name, -kMostFloat, kMostFloat);
    if (!bound.ok()) return bound;
    // As the values: a number on a bound is not beyond it.
    attributes.Set(name, static_cast<double>(static_cast<float>(attributes.Float(name))));
  }
  const Clip clip = Clip::Read(attributes);
  if (clip.min > clip.max) {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute min: ", clip.min, ", want at most the max ", clip.max));
  }
  return InferSameShape(x, attributes);
}

template <typename T>
void ClipForward(const ForwardCall<T>& call) {
  const Clip clip = Clip::Read(call.op.attributes);
  PointwiseForward(call, [&clip](double x) {
    return x < clip.min ? clip.min : x > clip.max ? clip.max : x;
  });
}
template <typename T>
void ClipBackward(const BackwardCall<T>& call) {
  const Clip clip = Clip::Read(call.op.attributes);
  PointwiseBackward(call, call.x[0],
                    [&clip](double x) { return x >= clip.min && x <= clip.max ? 1 : 0; });
}

}  // namespace

const OpDef& SigmoidOp() {
  static const OpDef& op =
      *new OpDef{.name = Sigmoid::kName,
                 .infer = InferSameShape,
                 .reads = {.y = true},
                 .in_place = InPlace::kOutput,
                 .reference = {SigmoidForward<float>, SigmoidBackward<float>},
                 .reference_double = {SigmoidForward<double>, SigmoidBackward<double>}};
  return op;
}

const OpDef& TanhOp() {
  static const OpDef& op =
      *new OpDef{.name = Tanh::kName,
                 .infer = InferSameShape,
                 .reads = {.y = true},
                 .in_place = InPlace::kOutput,
                 .reference = {TanhForward<float>, TanhBackward<float>},
                 .reference_double = {TanhForward<double>, TanhBackward<double>}};
  return op;
}

const OpDef& LeakyReluOp() {
  static const OpDef& op =
      *new OpDef{.name = LeakyRelu::kName,
                 .attributes = {{"alpha", LeakyRelu().alpha}},
                 .infer = InferLeakyRelu,
                 .reads = {.x = true},
                 .in_place = InPlace::kOutput,
                 .reference = {LeakyReluForward<float>, LeakyReluBackward<float>},
                 .reference_double = {LeakyReluForward<double>, LeakyReluBackward<double>}};
  return op;
}

const OpDef& ClipOp() {
  static const OpDef& op =
      *new OpDef{.name = Clip::kName,
                 .attributes = {{"max", Clip().max}, {"min", Clip().min}},
                 .infer = InferClip,
                 .reads = {.x = true},
                 .in_place = InPlace::kOutput,
                 .reference = {ClipForward<float>, ClipBackward<float>},
                 .reference_double = {ClipForward<double>, ClipBackward<double>}};
  return op;
}

}  // namespace capstan::training
