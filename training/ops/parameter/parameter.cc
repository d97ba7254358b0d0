#include "training/ops/parameter/parameter.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/reference.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferParameter(absl::Span<const ValueType>, Attributes& attributes) {
  const ParameterNode op = ParameterNode::Read(attributes);
  const absl::StatusOr<int64_t> elements = ElementCount(op.shape, "attribute shape");
  if (!elements.ok()) return elements.status();
  if (op.shape.empty()) {
    return absl::InvalidArgumentError("attribute shape: [], want at least one dimension");
  }
  OpParameter weight;
  weight.suffix = "weight";
  weight.shape = op.shape;
  weight.fan_in = weight.fan_out = op.shape.back();
  if (op.init == "zeros") {
    weight.init = ParameterInit::kZeros;
  } else if (op.init == "ones") {
    weight.init = ParameterInit::kOnes;
  } else if (op.init != "initializer") {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute init: '", op.init, "', want zeros, ones or initializer"));
  }
  Inference inferred;
  inferred.output.shape = op.shape;
  inferred.parameters = {weight};
  return inferred;
}

template <typename T>
void ParameterForward(const ForwardCall<T>& call) {
  const int64_t size = Elements(call.op.inferred.output.shape);
  for (int64_t n = 0; n < call.samples.count; ++n) {
    std::copy_n(call.parameters[0], size, call.y + n * size);
  }
}

template <typename T>
void ParameterBackward(const BackwardCall<T>& call) {
  const int64_t size = Elements(call.op.inferred.output.shape);
  SumOver<T> sums(call.dparameters[0], size);
  for (int64_t i = 0; i < call.samples.count * size; ++i) {
    sums.Add(i % size, static_cast<double>(call.dy[i]));
  }
}

}  // namespace

const OpDef& ParameterOp() {
  static const OpDef& op =
      *new OpDef{.name = ParameterNode::kName,
                 .attributes = {{"init", ParameterNode().init},
                                {"shape", ParameterNode().shape, /*required=*/true}},
                 .min_inputs = 0,
                 .max_inputs = 0,
                 .infer = InferParameter,
                 .reference = {ParameterForward<float>, ParameterBackward<float>},
                 .reference_double = {ParameterForward<double>, ParameterBackward<double>}};
  return op;
}

}  // namespace capstan::training
