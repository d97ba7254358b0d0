// Cast: any shape. Values stay float32; `to` says which numbers they hold. "float": y = x. "int32"
// and "int64": the whole number of x, towards zero and never -0, through which no gradient goes. A
// NaN stays a NaN, and a number outside the range of the type stays as it is. Source: ONNX opset 13.
#ifndef CAPSTAN_TRAINING_OPS_CAST_CAST_H_
#define CAPSTAN_TRAINING_OPS_CAST_CAST_H_

#include <string>

#include "training/ops/op.h"

namespace capstan::training {

struct Cast {
  static constexpr char kName[] = "Cast";
  std::string to = "float";  // or "int32" or "int64"

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"to", to}}};
  }
  static Cast Read(const Attributes& attributes) { return {attributes.Text("to")}; }
};

const OpDef& CastOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_CAST_CAST_H_
