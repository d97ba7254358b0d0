#include "training/ops/layer_normalization/layer_normalization.h"

#include <cmath>
#include <limits>

#include "training/ops/infer.h"
#include "training/ops/reference.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferLayerNormalization(absl::Span<const ValueType> x,
                                                  Attributes& attributes) {
  const absl::Status epsilon = CheckNumber(attributes, "epsilon", std::numeric_limits<float>::min(),
                                           std::numeric_limits<float>::max());
  if (!epsilon.ok()) return epsilon;
  const Shape& shape = x[0].shape;
  const absl::StatusOr<int64_t> axis =
      ResolveAxis("axis", LayerNormalization::Read(attributes).axis, shape);
  if (!axis.ok()) return axis.status();
  attributes.Set("axis", *axis);
  absl::StatusOr<Inference> inferred = InferSameShape(x, attributes);
  if (!inferred.ok()) return inferred;
  const Shape normalized(shape.begin() + (*axis - 1), shape.end());
  inferred->parameters = {
      {.suffix = "weight", .shape = normalized, .init = ParameterInit::kOnes, .bias_like = true},
      {.suffix = "bias", .shape = normalized, .init = ParameterInit::kZeros, .bias_like = true}};
  return inferred;
}

// The numbers of a batch that are normalized together: rows of `size`.
struct NormalizedRows {
  explicit NormalizedRows(const OpInstance& op, int64_t samples)
      : size(Elements(op.inferred.parameters[0].shape)),
        count(samples * Elements(op.x[0].shape) / size),
        epsilon(LayerNormalization::Read(op.attributes).epsilon) {}
  int64_t size, count;
  double epsilon;
};

// Of one row: z = (x - mean) * scale.
struct RowMoments {
  template <typename T>
  RowMoments(const NormalizedRows& rows, const T* x) {
    const double n = static_cast<double>(rows.size);
    for (int64_t i = 0; i < rows.size; ++i) mean += static_cast<double>(x[i]);
    mean /= n;
    double variance = 0;
    for (int64_t i = 0; i < rows.size; ++i) {
      const double distance = static_cast<double>(x[i]) - mean;
      variance += distance * distance;
    }
    scale = 1 / std::sqrt(variance / n + rows.epsilon);
  }
  double mean = 0, scale = 0;
};

template <typename T>
void LayerNormalizationForward(const ForwardCall<T>& call) {
  using Op = LayerNormalization;
  const NormalizedRows rows(call.op, call.samples.count);
  for (int64_t row = 0; row < rows.count; ++row) {
    const T* const x = call.x[0] + row * rows.size;
    const RowMoments moments(rows, x);
    for (int64_t i = 0; i < rows.size; ++i) {
      const double z = (static_cast<double>(x[i]) - moments.mean) * moments.scale;
      call.y[row * rows.size + i] =
          static_cast<T>(static_cast<double>(call.parameters[Op::kWeight][i]) * z +
                         static_cast<double>(call.parameters[Op::kBias][i]));
    }
  }
}

// With g = weight * dy and means over a row: dx = scale * (g - mean of g - z * mean of g * z),
// dweight = sum dy * z, dbias = sum dy.
template <typename T>
void LayerNormalizationBackward(const BackwardCall<T>& call) {
  using Op = LayerNormalization;
  const NormalizedRows rows(call.op, call.samples.count);
  const double n = static_cast<double>(rows.size);
  SumOver<T> dweight(call.dparameters[Op::kWeight], rows.size);
  SumOver<T> dbias(call.dparameters[Op::kBias], rows.size);
  for (int64_t row = 0; row < rows.count; ++row) {
    const T* const x = call.x[0] + row * rows.size;
    const T* const dy = call.dy + row * rows.size;
    const RowMoments moments(rows, x);
    const auto normal = [&](int64_t i) {
      return (static_cast<double>(x[i]) - moments.mean) * moments.scale;
    };
    const auto weighted = [&](int64_t i) {
      return static_cast<double>(call.parameters[Op::kWeight][i]) * static_cast<double>(dy[i]);
    };
    double sum = 0, product = 0;
    for (int64_t i = 0; i < rows.size; ++i) {
      sum += weighted(i);
      product += weighted(i) * normal(i);
      dweight.Add(i, static_cast<double>(dy[i]) * normal(i));
      dbias.Add(i, static_cast<double>(dy[i]));
    }
    if (call.dx[0] == nullptr) continue;
    for (int64_t i = 0; i < rows.size; ++i) {
      T& dx = call.dx[0][row * rows.size + i];
      const double d = moments.scale * (weighted(i) - sum / n - normal(i) * product / n);
      dx = static_cast<T>(static_cast<double>(dx) + d);
    }
  }
}

}  // namespace

const OpDef& LayerNormalizationOp() {
  static const OpDef& op = *new OpDef{
      .name = LayerNormalization::kName,
      .attributes = {{"axis", LayerNormalization().axis},
                     {"epsilon", LayerNormalization().epsilon}},
      .infer = InferLayerNormalization,
      .reads = {.x = true},
      .in_place = InPlace::kOutput,
      .reference = {LayerNormalizationForward<float>, LayerNormalizationBackward<float>},
      .reference_double = {LayerNormalizationForward<double>, LayerNormalizationBackward<double>}};
  return op;
}

}  // namespace capstan::training
