#include "training/ops/linear/linear.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/infer.h"
#include "training/ops/reference.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferLinear(absl::Span<const ValueType> x, Attributes& attributes) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  const Shape& shape = x[0].shape;
  if (shape.empty()) {
    return absl::InvalidArgumentError("input [], want [..., features]");
  }
  const Linear linear = Linear::Read(attributes);
  absl::Status status = CheckAtLeast("out_features", linear.out_features, 1);
  if (status.ok()) status = CheckFlag(attributes, "bias");
  if (!status.ok()) return status;
  OpParameter weight;
  weight.suffix = "weight";
  weight.shape = {linear.out_features, shape.back()};
  const absl::StatusOr<int64_t> elements = ElementCount(weight.shape, "weight");
  if (!elements.ok()) return elements.status();
  weight.fan_in = shape.back();
  weight.fan_out = linear.out_features;
  Inference inferred;
  inferred.flops = TwiceProduct(*elements, Elements(shape) / shape.back());
  inferred.parameters.push_back(weight);
  if (linear.bias) inferred.parameters.push_back(BiasOf(weight));
  inferred.output.shape = shape;
  inferred.output.shape.back() = linear.out_features;
  return inferred;
}

struct LinearSizes {
  LinearSizes(const OpInstance& op, const SampleInfo& samples)
      : inputs(op.x[0].shape.back()),
        outputs(op.inferred.output.shape.back()),
        rows(samples.count * (Elements(op.x[0].shape) / inputs)) {}
  int64_t inputs, outputs;
  int64_t rows;  // vectors in the batch
};

template <typename T>
void LinearForward(const ForwardCall<T>& call) {
  const LinearSizes sizes(call.op, call.samples);
  const bool bias = call.parameters.size() > 1;
  for (int64_t n = 0; n < sizes.rows; ++n) {
    const T* const x = call.x[0] + n * sizes.inputs;
    for (int64_t o = 0; o < sizes.outputs; ++o) {
      const T* const weight = call.parameters[0] + o * sizes.inputs;
      double sum = bias ? static_cast<double>(call.parameters[1][o]) : 0;
      for (int64_t i = 0; i < sizes.inputs; ++i) {
        sum += static_cast<double>(weight[i]) * static_cast<double>(x[i]);
      }
      call.y[n * sizes.outputs + o] = static_cast<T>(sum);
    }
  }
}

template <typename T>
void LinearBackward(const BackwardCall<T>& call) {
  const LinearSizes sizes(call.op, call.samples);
  const bool bias = call.dparameters.size() > 1;
  SumOver<T> dx(call.dx[0], sizes.rows * sizes.inputs);
  SumOver<T> dweight(call.dparameters[0], sizes.outputs * sizes.inputs);
  SumOver<T> dbias(bias ? call.dparameters[1] : nullptr, sizes.outputs);
  for (int64_t n = 0; n < sizes.rows; ++n) {
    const T* const x = call.x[0] + n * sizes.inputs;
    for (int64_t o = 0; o < sizes.outputs; ++o) {
      const auto dy = static_cast<double>(call.dy[n * sizes.outputs + o]);
      const T* const weight = call.parameters[0] + o * sizes.inputs;
      dbias.Add(o, dy);
      for (int64_t i = 0; i < sizes.inputs; ++i) {
        dweight.Add(o * sizes.inputs + i, dy * static_cast<double>(x[i]));
        dx.Add(n * sizes.inputs + i, dy * static_cast<double>(weight[i]));
      }
    }
  }
}

}  // namespace

Linear::operator Operator() const {
  return {kName, {{"out_features", out_features}, {"bias", int64_t{bias}}}};
}

const OpDef& LinearOp() {
  static const OpDef& op = *new OpDef{
      .name = Linear::kName,
      .attributes = {{"out_features", int64_t{0}, /*required=*/true}, {"bias", int64_t{1}}},
      .infer = InferLinear,
      .reads = {.x = true},
      .reference = {LinearForward<float>, LinearBackward<float>},
      .reference_double = {LinearForward<double>, LinearBackward<double>}};
  return op;
}

}  // namespace capstan::training
