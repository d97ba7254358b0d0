#include "training/ops/arithmetic/arithmetic.h"

#include "training/ops/broadcast.h"

namespace capstan::training {
namespace {

template <typename T>
void SubForward(const ForwardCall<T>& call) {
  BroadcastForward(call, [](double a, double b) { return a - b; });
}
template <typename T>
void SubBackward(const BackwardCall<T>& call) {
  BroadcastBackward(
      call, /*reads_x=*/false, [](double, double, double dy) { return dy; },
      [](double, double, double dy) { return -dy; });
}

template <typename T>
void MulForward(const ForwardCall<T>& call) {
  BroadcastForward(call, [](double a, double b) { return a * b; });
}
template <typename T>
void MulBackward(const BackwardCall<T>& call) {
  BroadcastBackward(
      call, /*reads_x=*/true, [](double, double b, double dy) { return b * dy; },
      [](double a, double, double dy) { return a * dy; });
}

template <typename T>
void DivForward(const ForwardCall<T>& call) {
  BroadcastForward(call, [](double a, double b) { return a / b; });
}
template <typename T>
void DivBackward(const BackwardCall<T>& call) {
  BroadcastBackward(
      call, /*reads_x=*/true, [](double, double b, double dy) { return dy / b; },
      [](double a, double b, double dy) { return -dy * (a / b) / b; });
}

}  // namespace

const OpDef& SubOp() {
  static const OpDef& op =
      *new OpDef{.name = Sub::kName,
                 .min_inputs = 2,
                 .max_inputs = 2,
                 .infer = InferBroadcast,
                 .in_place = InPlace::kOutput,
                 .reference = {SubForward<float>, SubBackward<float>},
                 .reference_double = {SubForward<double>, SubBackward<double>}};
  return op;
}

const OpDef& MulOp() {
  static const OpDef& op =
      *new OpDef{.name = Mul::kName,
                 .min_inputs = 2,
                 .max_inputs = 2,
                 .infer = InferBroadcast,
                 .reads = {.x = true},
                 .in_place = InPlace::kOutput,
                 .reference = {MulForward<float>, MulBackward<float>},
                 .reference_double = {MulForward<double>, MulBackward<double>}};
  return op;
}

const OpDef& DivOp() {
  static const OpDef& op =
      *new OpDef{.name = Div::kName,
                 .min_inputs = 2,
                 .max_inputs = 2,
                 .infer = InferBroadcast,
                 .reads = {.x = true},
                 .in_place = InPlace::kOutput,
                 .reference = {DivForward<float>, DivBackward<float>},
                 .reference_double = {DivForward<double>, DivBackward<double>}};
  return op;
}

}  // namespace capstan::training
