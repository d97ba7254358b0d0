#include "training/ops/conv/conv.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/infer.h"

namespace capstan::training {
namespace {

std::vector<AttributeDef> ConvSchema() {
  std::vector<AttributeDef> schema = WindowSchema();
  schema.push_back({"out_channels", int64_t{0}, /*required=*/true});
  schema.push_back({"group", int64_t{1}});
  schema.push_back({"bias", int64_t{1}});
  return schema;
}

absl::StatusOr<Inference> InferConv(absl::Span<const ValueType> x, Attributes& attributes) {
  absl::Status status = CheckImage(x[0]);
  const int64_t channels = status.ok() ? x[0].shape[0] : 0;
  const int64_t outputs = attributes.Int("out_channels");
  const int64_t group = attributes.Int("group");
  if (status.ok()) status = CheckAtLeast("out_channels", outputs, 1);
  if (status.ok()) status = CheckAtLeast("group", group, 1);
  if (status.ok()) status = CheckFlag(attributes, "bias");
  if (!status.ok()) return status;
  if (channels % group != 0 || outputs % group != 0) {
    return absl::InvalidArgumentError(absl::StrCat("group ", group, ", want a divisor of ",
                                                   channels, " and ", outputs, " channels"));
  }
  const auto size = InferWindow(x[0].shape, attributes);
  if (!size.ok()) return size.status();
  const Window window = ReadWindow(attributes);

  Inference inferred;
  inferred.output.shape = {outputs, (*size)[0], (*size)[1]};
  OpParameter weight;
  weight.suffix = "weight";
  weight.shape = {outputs, channels / group, window.kernel_shape[0], window.kernel_shape[1]};
  const absl::StatusOr<int64_t> elements = ElementCount(weight.shape, "weight");
  if (!elements.ok()) return elements.status();
  const absl::StatusOr<int64_t> positions = ElementCount({(*size)[0], (*size)[1]}, "output");
  if (!positions.ok()) return positions.status();
  weight.fan_in = *elements / outputs;
  weight.fan_out = outputs * window.kernel_shape[0] * window.kernel_shape[1];
  inferred.flops = TwiceProduct(*elements, *positions);
  inferred.parameters.push_back(weight);
  if (attributes.Int("bias") != 0) inferred.parameters.push_back(BiasOf(weight));
  return inferred;
}

}  // namespace

Conv::operator Operator() const {
  Operator op{kName, {}};
  SetWindow(window, op.attributes);
  op.attributes.Set("out_channels", out_channels);
  op.attributes.Set("group", group);
  op.attributes.Set("bias", int64_t{bias});
  return op;
}

Conv Conv::Read(const Attributes& attributes) {
  return {attributes.Int("out_channels"), ReadWindow(attributes), attributes.Int("group"),
          attributes.Int("bias") != 0};
}

const OpDef& ConvOp() {
  static const OpDef& op =
      *new OpDef{.name = Conv::kName,
                 .attributes = ConvSchema(),
                 .infer = InferConv,
                 .reads = {.x = true},
                 .reference = {ConvForward<float>, ConvBackward<float>},
                 .reference_double = {ConvForward<double>, ConvBackward<double>}};
  return op;
}

}  // namespace capstan::training
