// Flatten: any shape -> [elements], in the order C, H, W.
#ifndef CAPSTAN_TRAINING_OPS_FLATTEN_FLATTEN_H_
#define CAPSTAN_TRAINING_OPS_FLATTEN_FLATTEN_H_

#include "training/ops/op.h"

namespace capstan::training {

struct Flatten {
  static constexpr char kName[] = "Flatten";
  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {}};
  }
  static Flatten Read(const Attributes&) { return {}; }
};

const OpDef& FlattenOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_FLATTEN_FLATTEN_H_
