#include "training/ops/relu/relu.h"

#include "training/ops/infer.h"

namespace capstan::training {
namespace {

template <typename T>
void ReluForward(const ForwardCall<T>& call) {
  const int64_t size = call.samples.count * Elements(call.op.x[0].shape);
  for (int64_t i = 0; i < size; ++i) call.y[i] = call.x[0][i] < 0 ? T{0} : call.x[0][i];
}

template <typename T>
void ReluBackward(const BackwardCall<T>& call) {
  const int64_t size = call.samples.count * Elements(call.op.x[0].shape);
  for (int64_t i = 0; i < size; ++i) {
    if (call.y[i] > 0) call.dx[0][i] += call.dy[i];
  }
}

}  // namespace

const OpDef& ReluOp() {
  static const OpDef& op =
      *new OpDef{.name = Relu::kName,
                 .infer = InferSameShape,
                 .reads = {.y = true},
                 .in_place = InPlace::kOutput,
                 .reference = {ReluForward<float>, ReluBackward<float>},
                 .reference_double = {ReluForward<double>, ReluBackward<double>}};
  return op;
}

}  // namespace capstan::training
