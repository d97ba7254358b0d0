// Gather: table [V, ...] and indices of any shape -> [shape of the indices, ...], one row of the
// table for each index: an embedding, whose table is usually the value of a Parameter.
//
// Indices are whole numbers in float32, which has all of them up to 2^24; what follows the point is
// cut off. -V to -1 count from the end. A NaN, or an index outside of that, gives a row of zeros and
// no gradient, so nothing outside the table is ever read. The gradient by the indices is 0. The
// gradient by the table adds the rows in the order of the indices.
// Source: ONNX opset 13 with axis 0, without the batch.
#ifndef CAPSTAN_TRAINING_OPS_GATHER_GATHER_H_
#define CAPSTAN_TRAINING_OPS_GATHER_GATHER_H_

#include "training/ops/op.h"
#include "training/ops/token_rule.h"

namespace capstan::training {

struct Gather {
  static constexpr char kName[] = "Gather";
  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {}};
  }
  static Gather Read(const Attributes&) { return {}; }
};

const OpDef& GatherOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_GATHER_GATHER_H_
