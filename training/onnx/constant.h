// Tensors that are known when a file is read: initializers, and what nodes make of them.
#ifndef CAPSTAN_TRAINING_ONNX_CONSTANT_H_
#define CAPSTAN_TRAINING_ONNX_CONSTANT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "capstan/onnx/v1/onnx.pb.h"
#include "training/onnx/onnx_model.h"
#include "training/ops/types.h"

namespace capstan::training::onnx {

// Text of the file, for a message: at most 80 bytes, without control characters.
std::string Shown(absl::string_view text);

// The number of which a float is the nearest, if it is a decimal fraction of at most six digits: 0.1
// of 0.1f. Else the float.
double DecimalOf(float value);

// A view of a tensor of the file, which must outlive it. Reshaping changes the view only.
struct Constant {
  std::string source;  // name of the initializer, or of the value that a node makes
  Shape dims;          // each at least 0
  int64_t elements = 1;
  // Null: every element is 0 and of type float.
  const capstan::onnx::v1::TensorProto* tensor = nullptr;
  bool fill = false;  // every element is the only one of `tensor`
  // The view is the transpose of the tensor, which is a matrix: dims are those of the view.
  bool transposed = false;
  // An initializer of the file with at least one dimension, or made of one: a weight of the network
  // wherever it is not a setting of an operator. Everything else is part of the network.
  bool trained = false;
  // Several nodes read it, or what it was made of.
  bool shared = false;
  // By element: it stands for the size of the batch, which is not known, and its number in `tensor`
  // has no meaning. Empty: no element does.
  std::vector<bool> batch;
};

// A whole number of a constant, or the size of the batch.
struct ShapeNumber {
  int64_t value = 0;  // without meaning if `batch`
  bool batch = false;
};

// The product of the dims. InvalidArgument: a negative dim, too many dims, or more elements than
// limits.max_weight_elements. `what` begins the message.
absl::StatusOr<int64_t> CheckedElements(const Shape& dims, const OnnxLimits& limits,
                                        absl::string_view what);

// Checks dims, the amount of data, and that the data is in the file. InvalidArgument otherwise.
absl::StatusOr<Constant> MakeConstant(const capstan::onnx::v1::TensorProto& tensor,
                                      std::string source, const OnnxLimits& limits);

// The elements as floats. InvalidArgument: not a type of floating point, or a number that is not
// finite, also after the conversion to float.
absl::StatusOr<std::vector<float>> ReadFloats(const Constant& constant);

// Whether the elements are whole numbers that ReadWhole reads.
bool IsWhole(const Constant& constant);

// All elements of a constant of any shape. InvalidArgument: not of type INT64, INT32 or BOOL.
absl::StatusOr<std::vector<ShapeNumber>> ReadWhole(const Constant& constant);

// Whole numbers of at most one dimension. InvalidArgument: another type, more dimensions, or more
// than 64 numbers.
absl::StatusOr<std::vector<ShapeNumber>> ReadShapeNumbers(const Constant& constant);

// As ReadShapeNumbers. InvalidArgument also: one of them is the size of the batch.
absl::StatusOr<std::vector<int64_t>> ReadIntegers(const Constant& constant);

}  // namespace capstan::training::onnx

#endif  // CAPSTAN_TRAINING_ONNX_CONSTANT_H_
