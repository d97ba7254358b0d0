// Functions of one number, on any shape. A NaN stays a NaN.
//
// exp and tanh are those of training/math/portable_math.h.
// Sources: ONNX opset 16 (LeakyRelu) and 13.
#ifndef CAPSTAN_TRAINING_OPS_ACTIVATION_ACTIVATION_H_
#define CAPSTAN_TRAINING_OPS_ACTIVATION_ACTIVATION_H_

#include <limits>

#include "training/ops/op.h"

namespace capstan::training {

// 1 / (1 + e^-x)
struct Sigmoid {
  static constexpr char kName[] = "Sigmoid";
  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {}};
  }
  static Sigmoid Read(const Attributes&) { return {}; }
};

struct Tanh {
  static constexpr char kName[] = "Tanh";
  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {}};
  }
  static Tanh Read(const Attributes&) { return {}; }
};

// x above 0, else alpha * x. The slope at 0 is alpha.
struct LeakyRelu {
  static constexpr char kName[] = "LeakyRelu";
  double alpha = 0.01;

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"alpha", alpha}}};
  }
  static LeakyRelu Read(const Attributes& attributes) { return {attributes.Float("alpha")}; }
};

// x within [min, max], else the nearer bound. A number between the bounds or on one passes the
// gradient on, as in PyTorch. min is at most max.
struct Clip {
  static constexpr char kName[] = "Clip";
  double min = -std::numeric_limits<float>::max();
  double max = std::numeric_limits<float>::max();

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"min", min}, {"max", max}}};
  }
  static Clip Read(const Attributes& attributes) {
    return {attributes.Float("min"), attributes.Float("max")};
  }
};

const OpDef& SigmoidOp();
const OpDef& TanhOp();
const OpDef& LeakyReluOp();
const OpDef& ClipOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_ACTIVATION_ACTIVATION_H_
