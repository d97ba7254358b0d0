// LRN: x [C, ...] -> the same shape; each number is divided by a power of its neighbours' squares in
// the same place:
//   y[c] = x[c] / (bias + alpha / size * sum of x[i]^2)^beta
// over the channels i from c - (size - 1) / 2, rounded up, to c + size / 2, rounded down, that
// exist.
//
// pow is that of training/math/portable_math.h.
// Sources: Krizhevsky, Sutskever & Hinton 2012, section 3.3; ONNX opset 13.
#ifndef CAPSTAN_TRAINING_OPS_LRN_LRN_H_
#define CAPSTAN_TRAINING_OPS_LRN_LRN_H_

#include <cstdint>

#include "training/ops/op.h"

namespace capstan::training {

struct LRN {
  static constexpr char kName[] = "LRN";
  int64_t size = 1;
  double alpha = 1e-4;
  double beta = 0.75;
  double bias = 1;

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"size", size}, {"alpha", alpha}, {"beta", beta}, {"bias", bias}}};
  }
  static LRN Read(const Attributes& attributes) {
    return {attributes.Int("size"), attributes.Float("alpha"), attributes.Float("beta"),
            attributes.Float("bias")};
  }
};

const OpDef& LRNOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_LRN_LRN_H_
