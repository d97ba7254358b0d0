#include "training/onnx/constant.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "training/compress/half.h"

namespace capstan::training::onnx {
namespace {

namespace v1 = capstan::onnx::v1;

constexpr int64_t kMostIntegers = 64;

// Bytes of an element in raw_data; 0: a type that is not read.
int64_t BytesOf(int32_t type) {
  switch (type) {
    case v1::DATA_TYPE_DOUBLE:
    case v1::DATA_TYPE_INT64:
      return 8;
    case v1::DATA_TYPE_FLOAT:
    case v1::DATA_TYPE_INT32:
      return 4;
    case v1::DATA_TYPE_FLOAT16:
    case v1::DATA_TYPE_BFLOAT16:
      return 2;
    case v1::DATA_TYPE_BOOL:
      return 1;
    default:
      return 0;
  }
}

// Elements of the list in which a tensor of this type has its elements if they are not in raw_data.
int64_t ListedElements(const v1::TensorProto& tensor) {
  switch (tensor.data_type()) {
    case v1::DATA_TYPE_FLOAT:
      return tensor.float_data_size();
    case v1::DATA_TYPE_DOUBLE:
      return tensor.double_data_size();
    case v1::DATA_TYPE_INT64:
      return tensor.int64_data_size();
    default:
      return tensor.int32_data_size();
  }
}

std::string TypeText(int32_t type) {
  const std::string& name = v1::DataType_Name(static_cast<v1::DataType>(type));
  return name.empty() ? absl::StrCat("type ", type) : name.substr(std::string("DATA_TYPE_").size());
}

absl::Status OfTensor(absl::string_view source, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("tensor '", Shown(source), "': ", what));
}

// The little-endian number of type Bits at the place of element i.
template <typename Bits>
Bits RawBits(const std::string& raw, int64_t i) {
  Bits bits = 0;
  for (size_t byte = 0; byte < sizeof(Bits); ++byte) {
    const uint8_t value = static_cast<uint8_t>(raw[static_cast<size_t>(i) * sizeof(Bits) + byte]);
    bits |= static_cast<Bits>(static_cast<Bits>(value) << (8 * byte));
  }
  return bits;
}

// Calls read(i) for each element of the view in row-major order. i is the place in the tensor.
template <typename Read>
void ForElements(const Constant& constant, Read read) {
  if (constant.fill) {
    for (int64_t i = 0; i < constant.elements; ++i) read(0);
  } else if (constant.transposed) {
    const int64_t rows = constant.dims[0], columns = constant.dims[1];
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) read(column * rows + row);
    }
  } else {
    for (int64_t i = 0; i < constant.elements; ++i) read(i);
  }
}

// Returns whether all numbers are finite.
template <typename Number>
bool AppendFloats(const Constant& constant, Number number, std::vector<float>& floats) {
  bool finite = true;
  ForElements(constant, [&](int64_t i) {
    const float value = number(i);
    finite = finite && std::isfinite(value);
    floats.push_back(value);
  });
  return finite;
}

// A double beyond the range of float becomes infinite.
float Narrowed(double value) {
  return std::abs(value) > static_cast<double>(std::numeric_limits<float>::max())
             ? std::numeric_limits<float>::infinity()
             : static_cast<float>(value);
}

bool AppendFloatsOfType(const Constant& constant, std::vector<float>& floats) {
  const v1::TensorProto& tensor = *constant.tensor;
  const std::string& raw = tensor.raw_data();
  const auto listed = [&tensor](int64_t i) {
    return static_cast<uint16_t>(tensor.int32_data(static_cast<int>(i)));
  };
  const auto append = [&](auto from_raw, auto from_list) {
    return raw.empty() ? AppendFloats(constant, from_list, floats)
                       : AppendFloats(constant, from_raw, floats);
  };
  switch (tensor.data_type()) {
    case v1::DATA_TYPE_FLOAT:
      return append([&](int64_t i) { return std::bit_cast<float>(RawBits<uint32_t>(raw, i)); },
                    [&](int64_t i) { return tensor.float_data(static_cast<int>(i)); });
    case v1::DATA_TYPE_DOUBLE:
      return append(
          [&](int64_t i) { return Narrowed(std::bit_cast<double>(RawBits<uint64_t>(raw, i))); },
          [&](int64_t i) { return Narrowed(tensor.double_data(static_cast<int>(i))); });
    case v1::DATA_TYPE_FLOAT16:
      return append([&](int64_t i) { return FromBinary16(RawBits<uint16_t>(raw, i)); },
                    [&](int64_t i) { return FromBinary16(listed(i)); });
    default:
      return append([&](int64_t i) { return FromBFloat16(RawBits<uint16_t>(raw, i)); },
                    [&](int64_t i) { return FromBFloat16(listed(i)); });
  }
}

}  // namespace

std::string Shown(absl::string_view text) {
  constexpr size_t kMost = 80;
  return absl::StrCat(absl::CHexEscape(text.substr(0, kMost)), text.size() > kMost ? "..." : "");
}

double DecimalOf(float value) {
  double decimal = 0;
  const bool exact =
      absl::SimpleAtod(absl::StrCat(value), &decimal) && static_cast<float>(decimal) == value;
  return exact ? decimal : static_cast<double>(value);
}

absl::StatusOr<int64_t> CheckedElements(const Shape& dims, const OnnxLimits& limits,
                                        absl::string_view what) {
  const int64_t rank = static_cast<int64_t>(dims.size());
  if (rank > limits.max_dims) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": ", rank, " dimensions, want at most ", limits.max_dims));
  }
  int64_t elements = 1;
  for (const int64_t dim : dims) {
    if (dim < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": shape ", ShapeToString(dims), ", want dimensions of at least 0"));
    }
    // A 0 must not hide the others, whose product other code makes.
    if (elements > limits.max_weight_elements / std::max<int64_t>(dim, 1)) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": shape ", ShapeToString(dims),
                                                     ", want at most ", limits.max_weight_elements,
                                                     " elements"));
    }
    elements *= std::max<int64_t>(dim, 1);
  }
  return std::find(dims.begin(), dims.end(), 0) == dims.end() ? elements : 0;
}

absl::StatusOr<Constant> MakeConstant(const v1::TensorProto& tensor, std::string source,
                                      const OnnxLimits& limits) {
  if (tensor.external_data_size() > 0 || tensor.data_location() != 0) {
    return OfTensor(source, "external data is not read, want the data in the file");
  }
  if (tensor.has_segment()) return OfTensor(source, "a part of a tensor, want all of it");
  Constant constant;
  constant.dims.assign(tensor.dims().begin(), tensor.dims().end());
  const absl::StatusOr<int64_t> elements =
      CheckedElements(constant.dims, limits, absl::StrCat("tensor '", Shown(source), "'"));
  if (!elements.ok()) return elements.status();
  constant.elements = *elements;
  constant.tensor = &tensor;
  const int64_t size = BytesOf(tensor.data_type());
  if (size > 0) {  // else reading it is refused
    const int64_t raw = static_cast<int64_t>(tensor.raw_data().size());
    const int64_t listed = ListedElements(tensor);
    if (raw > 0 ? listed > 0 || raw != *elements * size : listed != *elements) {
      return OfTensor(
          source,
          absl::StrCat("shape ", ShapeToString(constant.dims), " of ", TypeText(tensor.data_type()),
                       " with ", raw, " bytes of raw data and ", listed, " listed numbers, want ",
                       *elements * size, " bytes or ", *elements, " numbers"));
    }
  }
  constant.source = std::move(source);
  return constant;
}

absl::StatusOr<std::vector<float>> ReadFloats(const Constant& constant) {
  if (constant.tensor == nullptr) {
    return std::vector<float>(static_cast<size_t>(constant.elements), 0.0f);
  }
  const int32_t type = constant.tensor->data_type();
  if (type != v1::DATA_TYPE_FLOAT && type != v1::DATA_TYPE_DOUBLE &&
      type != v1::DATA_TYPE_FLOAT16 && type != v1::DATA_TYPE_BFLOAT16) {
    return OfTensor(constant.source, absl::StrCat("elements of ", TypeText(type),
                                                  ", want FLOAT, DOUBLE, FLOAT16 or BFLOAT16"));
  }
  std::vector<float> floats;
  floats.reserve(static_cast<size_t>(constant.elements));
  if (!AppendFloatsOfType(constant, floats)) {
    return OfTensor(constant.source, "contains a number that is not finite as a float");
  }
  return floats;
}

bool IsWhole(const Constant& constant) {
  if (constant.tensor == nullptr) return false;
  const int32_t type = constant.tensor->data_type();
  return type == v1::DATA_TYPE_INT64 || type == v1::DATA_TYPE_INT32 || type == v1::DATA_TYPE_BOOL;
}

absl::StatusOr<std::vector<ShapeNumber>> ReadWhole(const Constant& constant) {
  const int32_t type =
      constant.tensor == nullptr ? v1::DATA_TYPE_FLOAT : constant.tensor->data_type();
  if (!IsWhole(constant)) {
    return OfTensor(constant.source,
                    absl::StrCat("elements of ", TypeText(type), ", want INT64 or INT32"));
  }
  const v1::TensorProto& tensor = *constant.tensor;
  const std::string& raw = tensor.raw_data();
  std::vector<ShapeNumber> numbers;
  numbers.reserve(static_cast<size_t>(constant.elements));
  ForElements(constant, [&](int64_t i) {
    const int at = static_cast<int>(i);
    ShapeNumber number;
    if (type == v1::DATA_TYPE_INT64) {
      number.value =
          raw.empty() ? tensor.int64_data(at) : static_cast<int64_t>(RawBits<uint64_t>(raw, i));
    } else if (raw.empty()) {
      number.value = tensor.int32_data(at);
    } else {
      number.value = type == v1::DATA_TYPE_INT32 ? static_cast<int32_t>(RawBits<uint32_t>(raw, i))
                                                 : int64_t{RawBits<uint8_t>(raw, i)};
    }
    number.batch = !constant.batch.empty() && constant.batch[numbers.size()];
    numbers.push_back(number);
  });
  return numbers;
}

absl::StatusOr<std::vector<ShapeNumber>> ReadShapeNumbers(const Constant& constant) {
  if (IsWhole(constant) && (constant.dims.size() > 1 || constant.elements > kMostIntegers)) {
    return OfTensor(constant.source, absl::StrCat("shape ", ShapeToString(constant.dims),
                                                  ", want at most ", kMostIntegers, " numbers"));
  }
  return ReadWhole(constant);
}

absl::StatusOr<std::vector<int64_t>> ReadIntegers(const Constant& constant) {
  const absl::StatusOr<std::vector<ShapeNumber>> numbers = ReadShapeNumbers(constant);
  if (!numbers.ok()) return numbers.status();
  std::vector<int64_t> integers;
  for (const ShapeNumber& number : *numbers) {
    if (number.batch) {
      return OfTensor(constant.source, "contains the size of the batch, want known numbers");
    }
    integers.push_back(number.value);
  }
  return integers;
}

}  // namespace capstan::training::onnx
