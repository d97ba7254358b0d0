// LayerNormalization: y = weight * (x - mean) / sqrt(variance + epsilon) + bias. Mean and variance
// (biased) are over the axes of a sample from `axis` on. Parameters "weight" and "bias" have the
// shape of these axes, as torch.nn.LayerNorm has.
//
// `axis` counts as in ONNX, where the batch is axis 0: 1 is the first axis of a sample, and -1 is
// the last one. After inference it is positive.
// Source: Ba, Kiros & Hinton 2016, arXiv:1607.06450; ONNX opset 17.
#ifndef CAPSTAN_TRAINING_OPS_LAYER_NORMALIZATION_LAYER_NORMALIZATION_H_
#define CAPSTAN_TRAINING_OPS_LAYER_NORMALIZATION_LAYER_NORMALIZATION_H_

#include <cstdint>

#include "training/ops/op.h"

namespace capstan::training {

struct LayerNormalization {
  static constexpr char kName[] = "LayerNormalization";
  enum { kWeight, kBias };  // parameters
  int64_t axis = -1;
  double epsilon = 1e-5;

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"axis", axis}, {"epsilon", epsilon}}};
  }
  static LayerNormalization Read(const Attributes& attributes) {
    return {attributes.Int("axis"), attributes.Float("epsilon")};
  }
};

const OpDef& LayerNormalizationOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_LAYER_NORMALIZATION_LAYER_NORMALIZATION_H_
