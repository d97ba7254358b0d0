// Softmax and LogSoftmax: any shape; e^x / (the sum of e^x), or its logarithm, over one axis. The
// largest x of the axis is taken off first, so nothing overflows.
//
// `axis` counts as in ONNX, where the batch is axis 0: 1 is the first axis of a sample, and -1 is
// the last one. After inference it is positive. exp and log are those of
// training/math/portable_math.h. Source: ONNX opset 13.
#ifndef CAPSTAN_TRAINING_OPS_SOFTMAX_SOFTMAX_H_
#define CAPSTAN_TRAINING_OPS_SOFTMAX_SOFTMAX_H_

#include <cstdint>

#include "training/ops/op.h"

namespace capstan::training {

struct Softmax {
  static constexpr char kName[] = "Softmax";
  int64_t axis = -1;

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"axis", axis}}};
  }
  static Softmax Read(const Attributes& attributes) { return {attributes.Int("axis")}; }
};

struct LogSoftmax {
  static constexpr char kName[] = "LogSoftmax";
  int64_t axis = -1;

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"axis", axis}}};
  }
  static LogSoftmax Read(const Attributes& attributes) { return {attributes.Int("axis")}; }
};

const OpDef& SoftmaxOp();
const OpDef& LogSoftmaxOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_SOFTMAX_SOFTMAX_H_
