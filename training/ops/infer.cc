#include "training/ops/infer.h"

#include <algorithm>
#include <limits>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"

namespace capstan::training {

absl::Status CheckAtLeast(absl::string_view what, int64_t got, int64_t want) {
  if (got < want) {
    return absl::InvalidArgumentError(absl::StrCat(what, " ", got, ", want at least ", want));
  }
  return absl::OkStatus();
}

absl::Status CheckFlag(const Attributes& attributes, const std::string& name) {
  const int64_t value = attributes.Int(name);
  if (value == 0 || value == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("attribute ", name, ": ", value, ", want 0 or 1"));
}

absl::Status CheckNumber(const Attributes& attributes, const std::string& name, double least,
                         double most) {
  const double value = attributes.Float(name);
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("attribute ", name, ": ", value, ", want ", least, " to ", most));
}

absl::Status CheckFloats(absl::Span<const ValueType> x) {
  static constexpr const char* kNames[] = {"float32", "int32", "uint8"};
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i].dtype == DType::kFloat32) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("input ", i, ": ", kNames[static_cast<int>(x[i].dtype)], ", want float32"));
  }
  return absl::OkStatus();
}

absl::Status CheckImage(const ValueType& x) {
  const absl::Status floats = CheckFloats({&x, 1});
  if (!floats.ok()) return floats;
  if (x.shape.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("input ", ShapeToString(x.shape), ", want [C, H, W]"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ResolveAxis(const std::string& name, int64_t axis, const Shape& shape) {
  const int64_t rank = static_cast<int64_t>(shape.size());
  if (axis < 0 && axis >= -rank) axis += rank + 1;
  if (axis >= 1 && axis <= rank) return axis;
  return absl::InvalidArgumentError(absl::StrCat("attribute ", name, ": ", axis, ", want 1 to ",
                                                 rank, " or -", rank, " to -1 over ",
                                                 ShapeToString(shape), " (0 is the batch)"));
}

absl::StatusOr<std::vector<int64_t>> ResolveAxes(const std::string& name,
                                                 const std::vector<int64_t>& axes,
                                                 const Shape& shape) {
  std::vector<int64_t> resolved;
  for (const int64_t axis : axes) {
    const absl::StatusOr<int64_t> one = ResolveAxis(name, axis, shape);
    if (!one.ok()) return one.status();
    if (std::find(resolved.begin(), resolved.end(), *one) != resolved.end()) {
      return absl::InvalidArgumentError(absl::StrCat("attribute ", name, ": ", ShapeToString(axes),
                                                     " has axis ", *one, " twice, want each once"));
    }
    resolved.push_back(*one);
  }
  return resolved;
}

absl::StatusOr<Inference> InferSameShape(absl::Span<const ValueType> x, Attributes&) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  for (size_t i = 1; i < x.size(); ++i) {
    if (x[i].shape == x[0].shape) continue;
    return absl::InvalidArgumentError(absl::StrCat("input ", i, ": ", ShapeToString(x[i].shape),
                                                   ", want ", ShapeToString(x[0].shape),
                                                   " as input 0"));
  }
  Inference inferred;
  inferred.output = x[0];
  return inferred;
}

int64_t TwiceProduct(int64_t a, int64_t b) {
  const absl::int128 product = absl::int128(2) * a * b;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return product > kMost ? kMost : static_cast<int64_t>(product);
}

OpParameter BiasOf(const OpParameter& weight) {
  OpParameter bias = weight;
  bias.suffix = "bias";
  bias.shape = {weight.shape[0]};
  bias.init = ParameterInit::kZeros;
  bias.bias_like = true;
  return bias;
}

}  // namespace capstan::training
