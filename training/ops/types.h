// The types of values in a graph.
#ifndef CAPSTAN_TRAINING_OPS_TYPES_H_
#define CAPSTAN_TRAINING_OPS_TYPES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::training {

// The shape of one sample, row-major: [C, H, W] or [features].
using Shape = std::vector<int64_t>;

enum class DType { kFloat32, kInt32, kUint8 };

struct ValueType {
  Shape shape;
  DType dtype = DType::kFloat32;
};

// Largest number of elements of one value or parameter.
inline constexpr int64_t kMaxTensorElements = int64_t{1} << 40;

// "[1, 28, 28]".
std::string ShapeToString(const Shape& shape);

// The product of the dimensions, 1 for []. InvalidArgument: a dimension below 1, or more than
// kMaxTensorElements. The message begins with `what`.
absl::StatusOr<int64_t> ElementCount(const Shape& shape, absl::string_view what);

// The product of the dimensions of a shape that ElementCount has accepted.
int64_t Elements(const Shape& shape);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_TYPES_H_
