// Concat: inputs that differ in at most one dimension are joined along it, in the order of the
// inputs.
//
// `axis` counts as in ONNX, where the batch is axis 0. So 1 is the first dimension of a sample, the
// channels of a [C, H, W]. Negative values count from the end: -1 is the last dimension. The batch
// itself is refused. After inference the axis is positive.
#ifndef CAPSTAN_TRAINING_OPS_CONCAT_CONCAT_H_
#define CAPSTAN_TRAINING_OPS_CONCAT_CONCAT_H_

#include <cstdint>

#include "training/ops/op.h"

namespace capstan::training {

struct Concat {
  static constexpr char kName[] = "Concat";
  int64_t axis = 1;

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"axis", axis}}};
  }
  static Concat Read(const Attributes& attributes) { return {attributes.Int("axis")}; }
};

const OpDef& ConcatOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_CONCAT_CONCAT_H_
