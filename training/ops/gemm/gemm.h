// Gemm: x [I] -> [O], y = weight * x + bias; weight [O, I] (ONNX transB = 1), bias [O].
#ifndef CAPSTAN_TRAINING_OPS_GEMM_GEMM_H_
#define CAPSTAN_TRAINING_OPS_GEMM_GEMM_H_

#include <cstdint>

#include "training/ops/op.h"

namespace capstan::training {

struct Gemm {
  static constexpr char kName[] = "Gemm";
  int64_t out_features = 0;
  bool bias = true;

  operator Operator() const;  // NOLINT(google-explicit-constructor): a node takes either form
  static Gemm Read(const Attributes& attributes) {
    return {attributes.Int("out_features"), attributes.Int("bias") != 0};
  }
};

const OpDef& GemmOp();

template <typename T>
void GemmForward(const ForwardCall<T>& call);
template <typename T>
void GemmBackward(const BackwardCall<T>& call);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_GEMM_GEMM_H_
