// Linear: x [..., I] -> [..., O], y = weight * x + bias for each vector along the last axis; weight
// [O, I], bias [O]. For x [I] it is Gemm. Names, shapes and fans are those of torch.nn.Linear.
#ifndef CAPSTAN_TRAINING_OPS_LINEAR_LINEAR_H_
#define CAPSTAN_TRAINING_OPS_LINEAR_LINEAR_H_

#include <cstdint>

#include "training/ops/op.h"

namespace capstan::training {

struct Linear {
  static constexpr char kName[] = "Linear";
  int64_t out_features = 0;
  bool bias = true;

  operator Operator() const;  // NOLINT(google-explicit-constructor): a node takes either form
  static Linear Read(const Attributes& attributes) {
    return {attributes.Int("out_features"), attributes.Int("bias") != 0};
  }
};

const OpDef& LinearOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_LINEAR_LINEAR_H_
