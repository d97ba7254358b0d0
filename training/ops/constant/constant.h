// Constant: no inputs. A tensor of `shape` whose elements all are `value`, the same for every
// sample: a factor or a shift that is part of the network. It is never trained; a tensor that is
// trained is a Parameter (training/ops/parameter).
#ifndef CAPSTAN_TRAINING_OPS_CONSTANT_CONSTANT_H_
#define CAPSTAN_TRAINING_OPS_CONSTANT_CONSTANT_H_

#include "training/ops/op.h"

namespace capstan::training {

struct ConstantNode {
  static constexpr char kName[] = "Constant";
  double value = 0;  // within the range of float32
  Shape shape = {1};

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"value", value}, {"shape", shape}}};
  }
  static ConstantNode Read(const Attributes& attributes) {
    return {attributes.Float("value"), attributes.Ints("shape")};
  }
};

const OpDef& ConstantOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_CONSTANT_CONSTANT_H_
