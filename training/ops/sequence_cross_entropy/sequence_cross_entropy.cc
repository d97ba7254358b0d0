#include "training/ops/sequence_cross_entropy/sequence_cross_entropy.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/math/portable_math.h"
#include "training/ops/infer.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferSequenceLoss(absl::Span<const ValueType> x, Attributes&) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  const Shape& logits = x[0].shape;
  constexpr int64_t kMost = int64_t{1} << 24;
  if (logits.size() != 2 || logits[1] > kMost) {
    return absl::InvalidArgumentError(absl::StrCat("input 0: ", ShapeToString(logits),
                                                   ", want [positions, classes], at most ", kMost,
                                                   " classes"));
  }
  if (Elements(x[1].shape) != logits[0]) {
    return absl::InvalidArgumentError(absl::StrCat("input 1: ", ShapeToString(x[1].shape),
                                                   ", want a token for each of the ", logits[0],
                                                   " positions of input 0"));
  }
  Inference inferred;
  inferred.output.shape = {1};
  return inferred;
}

// The logits of a position and its target.
template <typename T>
struct Position {
  Position(const OpInstance& op, const SampleInfo& samples, const std::vector<const T*>& inputs,
           int64_t n, int64_t t)
      : classes(op.x[0].shape[1]) {
    const int64_t positions = op.x[0].shape[0];
    x = inputs[0] + (n * positions + t) * classes;
    const double token = t + 1 < positions ? static_cast<double>(inputs[1][n * positions + t + 1])
                                           : static_cast<double>(samples.labels[n]);
    target = ClassOfToken(token, classes);
    largest = static_cast<double>(*std::max_element(x, x + classes));
    double sum = 0;
    for (int64_t k = 0; k < classes; ++k) {
      sum += PortableExp(static_cast<double>(x[k]) - largest);
    }
    log_sum = PortableLog(sum);
  }
  double log_softmax(int64_t k) const { return static_cast<double>(x[k]) - largest - log_sum; }

  const int64_t classes;
  const T* x = nullptr;
  int64_t target = -1;  // -1: does not count
  double largest = 0, log_sum = 0;
};

template <typename T>
void SequenceLossForward(const ForwardCall<T>& call) {
  const int64_t positions = call.op.x[0].shape[0];
  for (int64_t n = 0; n < call.samples.count; ++n) {
    double loss = 0;
    for (int64_t t = 0; t < positions; ++t) {
      const Position<T> at(call.op, call.samples, call.x, n, t);
      if (at.target >= 0) loss -= at.log_softmax(at.target);
    }
    call.y[n] = static_cast<T>(loss / static_cast<double>(positions));
  }
}

template <typename T>
void SequenceLossBackward(const BackwardCall<T>& call) {
  if (call.dx[0] == nullptr) return;
  const int64_t positions = call.op.x[0].shape[0];
  for (int64_t n = 0; n < call.samples.count; ++n) {
    const double scale = static_cast<double>(call.dy[n]) / static_cast<double>(positions);
    for (int64_t t = 0; t < positions; ++t) {
      const Position<T> at(call.op, call.samples, call.x, n, t);
      for (int64_t k = 0; at.target >= 0 && k < at.classes; ++k) {
        const double d = PortableExp(at.log_softmax(k)) - (k == at.target ? 1 : 0);
        T& dx = call.dx[0][(n * positions + t) * at.classes + k];
        dx = static_cast<T>(static_cast<double>(dx) + d * scale);
      }
    }
  }
}

}  // namespace

const OpDef& SequenceCrossEntropyLossOp() {
  static const OpDef& op =
      *new OpDef{.name = SequenceCrossEntropyLoss::kName,
                 .min_inputs = 2,
                 .max_inputs = 2,
                 .infer = InferSequenceLoss,
                 .reads = {.x = true},
                 .loss = true,
                 .reference = {SequenceLossForward<float>, SequenceLossBackward<float>},
                 .reference_double = {SequenceLossForward<double>, SequenceLossBackward<double>}};
  return op;
}

}  // namespace capstan::training
