#include "training/ops/add/add.h"

#include "training/ops/broadcast.h"

namespace capstan::training {
namespace {

template <typename T>
void AddForward(const ForwardCall<T>& call) {
  BroadcastForward(call, [](double a, double b) { return a + b; });
}

template <typename T>
void AddGradients(const BackwardCall<T>& call) {
  const auto same = [](double, double, double dy) { return dy; };
  BroadcastBackward(call, /*reads_x=*/false, same, same);
}

}  // namespace

const OpDef& AddOp() {
  static const OpDef& op =
      *new OpDef{.name = Add::kName,
                 .min_inputs = 2,
                 .max_inputs = 2,
                 .infer = InferBroadcast,
                 .in_place = InPlace::kOutput,
                 .reference = {AddForward<float>, AddGradients<float>},
                 .reference_double = {AddForward<double>, AddGradients<double>}};
  return op;
}

}  // namespace capstan::training
