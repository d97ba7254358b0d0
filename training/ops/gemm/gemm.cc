#include "training/ops/gemm/gemm.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/infer.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferGemm(absl::Span<const ValueType> x, Attributes& attributes) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  if (x[0].shape.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("input ", ShapeToString(x[0].shape),
                                                   ", want [features] (put a Flatten before it)"));
  }
  const Gemm gemm = Gemm::Read(attributes);
  absl::Status status = CheckAtLeast("out_features", gemm.out_features, 1);
  if (status.ok()) status = CheckFlag(attributes, "bias");
  if (!status.ok()) return status;
  Inference inferred;
  inferred.output.shape = {gemm.out_features};
  OpParameter weight;
  weight.suffix = "weight";
  weight.shape = {gemm.out_features, x[0].shape[0]};
  const absl::StatusOr<int64_t> elements = ElementCount(weight.shape, "weight");
  if (!elements.ok()) return elements.status();
  weight.fan_in = x[0].shape[0];
  weight.fan_out = gemm.out_features;
  inferred.flops = TwiceProduct(*elements, 1);
  inferred.parameters.push_back(weight);
  if (gemm.bias) inferred.parameters.push_back(BiasOf(weight));
  return inferred;
}

}  // namespace

Gemm::operator Operator() const {
  return {kName, {{"out_features", out_features}, {"bias", int64_t{bias}}}};
}

const OpDef& GemmOp() {
  static const OpDef& op = *new OpDef{
      .name = Gemm::kName,
      .attributes = {{"out_features", int64_t{0}, /*required=*/true}, {"bias", int64_t{1}}},
      .infer = InferGemm,
      .reads = {.x = true},
      .reference = {GemmForward<float>, GemmBackward<float>},
      .reference_double = {GemmForward<double>, GemmBackward<double>}};
  return op;
}

}  // namespace capstan::training
