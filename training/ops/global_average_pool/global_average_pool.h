// GlobalAveragePool: x [C, H, W] -> [C, 1, 1], the mean of each channel.
#ifndef CAPSTAN_TRAINING_OPS_GLOBAL_AVERAGE_POOL_GLOBAL_AVERAGE_POOL_H_
#define CAPSTAN_TRAINING_OPS_GLOBAL_AVERAGE_POOL_GLOBAL_AVERAGE_POOL_H_

#include "training/ops/op.h"

namespace capstan::training {

struct GlobalAveragePool {
  static constexpr char kName[] = "GlobalAveragePool";
  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {}};
  }
  static GlobalAveragePool Read(const Attributes&) { return {}; }
};

const OpDef& GlobalAveragePoolOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_GLOBAL_AVERAGE_POOL_GLOBAL_AVERAGE_POOL_H_
