// Identity: any shape; y is x.
#ifndef CAPSTAN_TRAINING_OPS_IDENTITY_IDENTITY_H_
#define CAPSTAN_TRAINING_OPS_IDENTITY_IDENTITY_H_

#include "training/ops/op.h"

namespace capstan::training {

struct IdentityNode {
  static constexpr char kName[] = "Identity";
  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {}};
  }
  static IdentityNode Read(const Attributes&) { return {}; }
};

const OpDef& IdentityOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_IDENTITY_IDENTITY_H_
