// MatMul: a [..., M, K] and b [..., K, N] -> [..., M, N], the matrix product. The axes in front are
// broadcast within a sample (training/ops/broadcast.h), and may be missing.
#ifndef CAPSTAN_TRAINING_OPS_MAT_MUL_MAT_MUL_H_
#define CAPSTAN_TRAINING_OPS_MAT_MUL_MAT_MUL_H_

#include "training/ops/op.h"

namespace capstan::training {

struct MatMul {
  static constexpr char kName[] = "MatMul";
  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {}};
  }
  static MatMul Read(const Attributes&) { return {}; }
};

const OpDef& MatMulOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_MAT_MUL_MAT_MUL_H_
