// Pad: x with `value` around it (ONNX's mode constant).
//
// `pads` is of a sample: ONNX's without the two numbers of the batch. First come the numbers of new
// elements before each axis, then those after each axis. A negative number takes elements away, and
// each axis keeps at least one of x.
#ifndef CAPSTAN_TRAINING_OPS_PAD_PAD_H_
#define CAPSTAN_TRAINING_OPS_PAD_PAD_H_

#include <cstdint>
#include <vector>

#include "training/ops/op.h"

namespace capstan::training {

struct Pad {
  static constexpr char kName[] = "Pad";
  std::vector<int64_t> pads;
  double value = 0;

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"pads", pads}, {"value", value}}};
  }
  static Pad Read(const Attributes& attributes) {
    return {attributes.Ints("pads"), attributes.Float("value")};
  }
};

const OpDef& PadOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_PAD_PAD_H_
