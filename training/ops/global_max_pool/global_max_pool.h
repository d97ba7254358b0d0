// GlobalMaxPool: x [C, H, W] -> [C, 1, 1], the maximum of each channel. The gradient goes to the
// first of equal maxima. If a channel contains a NaN, the first NaN is its maximum.
#ifndef CAPSTAN_TRAINING_OPS_GLOBAL_MAX_POOL_GLOBAL_MAX_POOL_H_
#define CAPSTAN_TRAINING_OPS_GLOBAL_MAX_POOL_GLOBAL_MAX_POOL_H_

#include "training/ops/op.h"

namespace capstan::training {

struct GlobalMaxPool {
  static constexpr char kName[] = "GlobalMaxPool";
  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {}};
  }
  static GlobalMaxPool Read(const Attributes&) { return {}; }
};

const OpDef& GlobalMaxPoolOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_GLOBAL_MAX_POOL_GLOBAL_MAX_POOL_H_
