#include "training/ops/softmax/softmax.h"

#include "training/math/portable_math.h"
#include "training/ops/infer.h"
#include "training/ops/places.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferSoftmax(absl::Span<const ValueType> x, Attributes& attributes) {
  const absl::StatusOr<int64_t> axis =
      ResolveAxis("axis", Softmax::Read(attributes).axis, x[0].shape);
  if (!axis.ok()) return axis.status();
  attributes.Set("axis", *axis);
  return InferSameShape(x, attributes);
}

// The numbers over which one softmax goes: `size` of them, `step` elements apart.
struct SoftmaxLine {
  int64_t first, step, size;

  template <typename Visit>
  void For(Visit visit) const {
    for (int64_t i = 0; i < size; ++i) visit(first + i * step);
  }
};

// Calls visit(line) for each line of a batch.
template <typename Visit>
void ForSoftmaxLines(const OpInstance& op, int64_t count, Visit visit) {
  const Shape& shape = op.x[0].shape;
  const size_t axis = static_cast<size_t>(op.attributes.Int("axis")) - 1;
  const int64_t size = shape[axis], step = ElementsBetween(shape, axis + 1, shape.size());
  const int64_t outer = count * ElementsBetween(shape, 0, axis);
  for (int64_t i = 0; i < outer; ++i) {
    for (int64_t k = 0; k < step; ++k) visit(SoftmaxLine{i * size * step + k, step, size});
  }
}

// The sum of e^(x - largest).
struct SoftmaxSum {
  template <typename T>
  SoftmaxSum(const SoftmaxLine& line, const T* x) : largest(static_cast<double>(x[line.first])) {
    line.For([&](int64_t at) {
      if (static_cast<double>(x[at]) > largest) largest = static_cast<double>(x[at]);
    });
    line.For([&](int64_t at) { sum += PortableExp(static_cast<double>(x[at]) - largest); });
  }
  double largest, sum = 0;
};

template <typename T>
void SoftmaxForward(const ForwardCall<T>& call) {
  const T* const x = call.x[0];
  ForSoftmaxLines(call.op, call.samples.count, [&](const SoftmaxLine& line) {
    const SoftmaxSum of(line, x);
    line.For([&](int64_t at) {
      call.y[at] = static_cast<T>(PortableExp(static_cast<double>(x[at]) - of.largest) / of.sum);
    });
  });
}

// dx = y * (dy - the sum of dy * y)
template <typename T>
void SoftmaxBackward(const BackwardCall<T>& call) {
  ForSoftmaxLines(call.op, call.samples.count, [&](const SoftmaxLine& line) {
    double sum = 0;
    line.For([&](int64_t at) {
      sum += static_cast<double>(call.dy[at]) * static_cast<double>(call.y[at]);
    });
    line.For([&](int64_t at) {
      const double d = static_cast<double>(call.y[at]) * (static_cast<double>(call.dy[at]) - sum);
      call.dx[0][at] = static_cast<T>(static_cast<double>(call.dx[0][at]) + d);
    });
  });
}

template <typename T>
void LogSoftmaxForward(const ForwardCall<T>& call) {
  const T* const x = call.x[0];
  ForSoftmaxLines(call.op, call.samples.count, [&](const SoftmaxLine& line) {
    const SoftmaxSum of(line, x);
    const double log = PortableLog(of.sum);
    line.For([&](int64_t at) {
      call.y[at] = static_cast<T>((static_cast<double>(x[at]) - of.largest) - log);
    });
  });
}

// dx = dy - e^y * the sum of dy
template <typename T>
void LogSoftmaxBackward(const BackwardCall<T>& call) {
  ForSoftmaxLines(call.op, call.samples.count, [&](const SoftmaxLine& line) {
    double sum = 0;
    line.For([&](int64_t at) { sum += static_cast<double>(call.dy[at]); });
    line.For([&](int64_t at) {
      const double d =
          static_cast<double>(call.dy[at]) - PortableExp(static_cast<double>(call.y[at])) * sum;
      call.dx[0][at] = static_cast<T>(static_cast<double>(call.dx[0][at]) + d);
    });
  });
}

}  // namespace

const OpDef& SoftmaxOp() {
  static const OpDef& op =
      *new OpDef{.name = Softmax::kName,
                 .attributes = {{"axis", Softmax().axis}},
                 .infer = InferSoftmax,
                 .reads = {.y = true},
                 .in_place = InPlace::kOutput,
                 .reference = {SoftmaxForward<float>, SoftmaxBackward<float>},
                 .reference_double = {SoftmaxForward<double>, SoftmaxBackward<double>}};
  return op;
}

const OpDef& LogSoftmaxOp() {
  static const OpDef& op =
      *new OpDef{.name = LogSoftmax::kName,
                 .attributes = {{"axis", LogSoftmax().axis}},
                 .infer = InferSoftmax,
                 .reads = {.y = true},
                 .in_place = InPlace::kOutput,
                 .reference = {LogSoftmaxForward<float>, LogSoftmaxBackward<float>},
                 .reference_double = {LogSoftmaxForward<double>, LogSoftmaxBackward<double>}};
  return op;
}

}  // namespace capstan::training
