// Sum: inputs of one shape -> the same shape, element by element, added in the order of the inputs.
// Nothing is broadcast. Several inputs may be the same value; its gradient is added once for each.
#ifndef CAPSTAN_TRAINING_OPS_SUM_SUM_H_
#define CAPSTAN_TRAINING_OPS_SUM_SUM_H_

#include "training/ops/op.h"

namespace capstan::training {

struct Sum {
  static constexpr char kName[] = "Sum";
  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {}};
  }
  static Sum Read(const Attributes&) { return {}; }
};

const OpDef& SumOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_SUM_SUM_H_
