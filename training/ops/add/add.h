// Add: two inputs, element by element. Shapes that differ are broadcast within a sample
// (training/ops/broadcast.h). Both inputs may be the same value; its gradient is then added twice.
#ifndef CAPSTAN_TRAINING_OPS_ADD_ADD_H_
#define CAPSTAN_TRAINING_OPS_ADD_ADD_H_

#include "training/ops/op.h"

namespace capstan::training {

struct Add {
  static constexpr char kName[] = "Add";
  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {}};
  }
  static Add Read(const Attributes&) { return {}; }
};

const OpDef& AddOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_ADD_ADD_H_
