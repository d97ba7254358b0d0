// Squeeze and Unsqueeze: the elements of x in their order, without or with axes of 1.
//
// Axes count as in ONNX, where the batch is axis 0: 1 is the first axis of a sample, and -1 is the
// last one. After inference they are positive.
#ifndef CAPSTAN_TRAINING_OPS_SQUEEZE_SQUEEZE_H_
#define CAPSTAN_TRAINING_OPS_SQUEEZE_SQUEEZE_H_

#include <cstdint>
#include <vector>

#include "training/ops/op.h"

namespace capstan::training {

// Without `axes`: every axis of 1. At least one axis must remain.
struct Squeeze {
  static constexpr char kName[] = "Squeeze";
  std::vector<int64_t> axes;

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"axes", axes}}};
  }
  static Squeeze Read(const Attributes& attributes) { return {attributes.Ints("axes")}; }
};

// `axes` are axes of the output.
struct Unsqueeze {
  static constexpr char kName[] = "Unsqueeze";
  std::vector<int64_t> axes;

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"axes", axes}}};
  }
  static Unsqueeze Read(const Attributes& attributes) { return {attributes.Ints("axes")}; }
};

const OpDef& SqueezeOp();
const OpDef& UnsqueezeOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_SQUEEZE_SQUEEZE_H_
