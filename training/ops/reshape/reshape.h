// Reshape: the elements of x in their order, in another shape.
//
// `shape` is of one sample: ONNX's shape without its first number, the batch. One number may be -1,
// which stands for the remaining elements. A 0 copies the dimension of x in the same place. After
// inference all are above 0.
#ifndef CAPSTAN_TRAINING_OPS_RESHAPE_RESHAPE_H_
#define CAPSTAN_TRAINING_OPS_RESHAPE_RESHAPE_H_

#include "training/ops/op.h"

namespace capstan::training {

struct Reshape {
  static constexpr char kName[] = "Reshape";
  Shape shape;

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"shape", shape}}};
  }
  static Reshape Read(const Attributes& attributes) { return {attributes.Ints("shape")}; }
};

const OpDef& ReshapeOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_RESHAPE_RESHAPE_H_
