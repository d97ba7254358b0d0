// Gelu: any shape. `approximate` "none": x * Phi(x) with Phi(x) = (1 + erf(x / sqrt 2)) / 2;
// "tanh": with Phi(x) = (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2 instead.
// Source: ONNX opset 20; Hendrycks & Gimpel 2016, arXiv:1606.08415.
#ifndef CAPSTAN_TRAINING_OPS_GELU_GELU_H_
#define CAPSTAN_TRAINING_OPS_GELU_GELU_H_

#include <string>

#include "training/ops/op.h"

namespace capstan::training {

struct Gelu {
  static constexpr char kName[] = "Gelu";
  std::string approximate = "none";  // or "tanh"

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"approximate", approximate}}};
  }
  static Gelu Read(const Attributes& attributes) { return {attributes.Text("approximate")}; }
};

const OpDef& GeluOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_GELU_GELU_H_
