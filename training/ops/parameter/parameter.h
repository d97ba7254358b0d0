// Parameter: no inputs. A trained tensor "weight" of `shape`, the same for every sample: a positional
// embedding, or a bias or scale of a shape of its own. Its gradient is the sum over the samples.
//
// `init` is its initial value: "zeros", "ones", or "initializer" for the job's initializer, with the
// last dimension as both fans. Weight decay applies to it as to any weight. ONNX has it as an
// initializer that a node reads.
#ifndef CAPSTAN_TRAINING_OPS_PARAMETER_PARAMETER_H_
#define CAPSTAN_TRAINING_OPS_PARAMETER_PARAMETER_H_

#include <string>

#include "training/ops/op.h"

namespace capstan::training {

struct ParameterNode {
  static constexpr char kName[] = "Parameter";
  Shape shape;
  std::string init = "zeros";

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"shape", shape}, {"init", init}}};
  }
  static ParameterNode Read(const Attributes& attributes) {
    return {attributes.Ints("shape"), attributes.Text("init")};
  }
};

const OpDef& ParameterOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_PARAMETER_PARAMETER_H_
