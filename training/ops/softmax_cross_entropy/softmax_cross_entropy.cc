#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/infer.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferLoss(absl::Span<const ValueType> x, Attributes& attributes) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  const Shape& shape = x[0].shape;
  if (shape.size() != 1 || shape[0] > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("input ", ShapeToString(shape), ", want [classes], at most ",
                     std::numeric_limits<int32_t>::max(), " of them"));
  }
  const double smoothing = attributes.Float("label_smoothing");
  if (!(smoothing >= 0 && smoothing < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("attribute label_smoothing: ", smoothing,
                                                   ", want at least 0 and less than 1"));
  }
  Inference inferred;
  inferred.output.shape = {1};
  return inferred;
}

// A row of logits: the log of the sum of their exponentials, and the target of each class.
template <typename T>
struct Row {
  Row(const OpInstance& op, const SampleInfo& samples, const T* logits, int64_t n)
      : classes(op.x[0].shape[0]),
        x(logits + n * classes),
        label(samples.labels[n]),
        smoothing(op.attributes.Float("label_smoothing")) {
    largest = *std::max_element(x, x + classes);
    double sum = 0;
    for (int64_t k = 0; k < classes; ++k) sum += std::exp(static_cast<double>(x[k]) - largest);
    log_sum = std::log(sum);
  }
  double log_softmax(int64_t k) const { return static_cast<double>(x[k]) - largest - log_sum; }
  double target(int64_t k) const {
    return smoothing / static_cast<double>(classes) + (k == label ? 1 - smoothing : 0);
  }

  const int64_t classes;
  const T* const x;
  const int32_t label;
  const double smoothing;
  double largest = 0, log_sum = 0;
};

template <typename T>
void LossForward(const ForwardCall<T>& call) {
  for (int64_t n = 0; n < call.samples.count; ++n) {
    const Row<T> row(call.op, call.samples, call.x[0], n);
    double loss = 0;
    for (int64_t k = 0; k < row.classes; ++k) {
      if (row.target(k) > 0) loss -= row.target(k) * row.log_softmax(k);
    }
    call.y[n] = static_cast<T>(loss);
  }
}

template <typename T>
void LossBackward(const BackwardCall<T>& call) {
  for (int64_t n = 0; n < call.samples.count; ++n) {
    const Row<T> row(call.op, call.samples, call.x[0], n);
    for (int64_t k = 0; k < row.classes; ++k) {
      const double d = std::exp(row.log_softmax(k)) - row.target(k);
      T& dx = call.dx[0][n * row.classes + k];
      dx = static_cast<T>(static_cast<double>(dx) + d * static_cast<double>(call.dy[n]));
    }
  }
}

}  // namespace

const OpDef& SoftmaxCrossEntropyLossOp() {
  static const OpDef& op =
      *new OpDef{.name = SoftmaxCrossEntropyLoss::kName,
                 .attributes = {{"label_smoothing", 0.0}},
                 .infer = InferLoss,
                 .reads = {.x = true},
                 .loss = true,
                 .reference = {LossForward<float>, LossBackward<float>},
                 .reference_double = {LossForward<double>, LossBackward<double>}};
  return op;
}

}  // namespace capstan::training
