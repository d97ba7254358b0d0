// ConstantOfShape: no inputs. A tensor of `shape` of which each number is `value`, the same for
// every sample and never trained. Source: ONNX opset 9, where the shape is an input.
#ifndef CAPSTAN_TRAINING_OPS_CONSTANT_OF_SHAPE_CONSTANT_OF_SHAPE_H_
#define CAPSTAN_TRAINING_OPS_CONSTANT_OF_SHAPE_CONSTANT_OF_SHAPE_H_

#include "training/ops/op.h"

namespace capstan::training {

struct ConstantOfShape {
  static constexpr char kName[] = "ConstantOfShape";
  Shape shape;
  double value = 0;  // rounded to float32

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"shape", shape}, {"value", value}}};
  }
  static ConstantOfShape Read(const Attributes& attributes) {
    return {attributes.Ints("shape"), attributes.Float("value")};
  }
};

const OpDef& ConstantOfShapeOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_CONSTANT_OF_SHAPE_CONSTANT_OF_SHAPE_H_
