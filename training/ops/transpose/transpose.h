// Transpose: the axes of a sample in another order. Axis i of y is axis perm[i] of x.
//
// `perm` is ONNX's without its first number, the batch, which stays in front: [2, 3, 1] makes a
// [H, W, C] of a [C, H, W]. After inference all numbers are positive. ONNX's default would move the
// batch, so there is none.
#ifndef CAPSTAN_TRAINING_OPS_TRANSPOSE_TRANSPOSE_H_
#define CAPSTAN_TRAINING_OPS_TRANSPOSE_TRANSPOSE_H_

#include <cstdint>
#include <vector>

#include "training/ops/op.h"

namespace capstan::training {

struct Transpose {
  static constexpr char kName[] = "Transpose";
  std::vector<int64_t> perm;

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"perm", perm}}};
  }
  static Transpose Read(const Attributes& attributes) { return {attributes.Ints("perm")}; }
};

const OpDef& TransposeOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_TRANSPOSE_TRANSPOSE_H_
