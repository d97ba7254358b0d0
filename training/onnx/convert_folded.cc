// What nodes make of constants and of shapes, computed when the file is read. Exporters write such
// nodes for x.view(x.size(0), -1).
//
// Whole numbers are computed with 64 bits, others as float. The size of the batch is not known. It
// goes through these nodes as a mark on its element, because a Reshape may have it in front.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "training/onnx/importer.h"
#include "training/ops/broadcast.h"
#include "training/ops/places.h"
#include "training/ops/slice/slice.h"

namespace capstan::training::onnx {
namespace {

namespace v1 = capstan::onnx::v1;

struct Folded {
  Shape dims;
  bool whole = false;  // which of the lists has the elements
  std::vector<ShapeNumber> integers;
  std::vector<float> floats;
  bool trained = false;  // see Constant
};

// All of an input. After an error, there are no elements.
Folded ReadFolded(NodeConversion& node, int input) {
  Folded folded;
  const Constant* const constant = node.ConstantInput(input);
  if (constant == nullptr || !node.CountFolded(constant->elements)) return folded;
  folded.dims = constant->dims;
  folded.trained = constant->trained;
  folded.whole = IsWhole(*constant);
  if (folded.whole) {
    absl::StatusOr<std::vector<ShapeNumber>> integers = ReadWhole(*constant);
    if (!integers.ok()) node.Refuse(integers.status().message());
    if (integers.ok()) folded.integers = *std::move(integers);
  } else {
    absl::StatusOr<std::vector<float>> floats = ReadFloats(*constant);
    if (!floats.ok()) node.Refuse(floats.status().message());
    if (floats.ok()) folded.floats = *std::move(floats);
  }
  return folded;
}

void OutputFolded(NodeConversion& node, const Folded& folded) {
  if (!node.ok()) return;
  v1::TensorProto& tensor = node.MakeTensor();
  tensor.set_data_type(folded.whole ? v1::DATA_TYPE_INT64 : v1::DATA_TYPE_FLOAT);
  tensor.mutable_dims()->Add(folded.dims.begin(), folded.dims.end());
  std::vector<bool> batch;
  for (const ShapeNumber& number : folded.integers) {
    tensor.add_int64_data(number.value);
    batch.push_back(number.batch);
  }
  tensor.mutable_float_data()->Add(folded.floats.begin(), folded.floats.end());
  absl::StatusOr<Constant> constant = MakeConstant(tensor, node.output_name(), node.limits());
  if (!constant.ok()) return node.Refuse(constant.status().message());
  constant->trained = folded.trained;
  if (std::find(batch.begin(), batch.end(), true) != batch.end()) constant->batch = batch;
  node.Output(*std::move(constant));
}

bool HasElements(const Shape& dims) { return std::find(dims.begin(), dims.end(), 0) == dims.end(); }

// Elements of a shape that was made of others; counts them as computed.
bool CountOutput(NodeConversion& node, const Shape& dims) {
  if (!node.ok()) return false;
  const absl::StatusOr<int64_t> elements = CheckedElements(dims, node.limits(), "output");
  if (!elements.ok()) node.Refuse(elements.status().message());
  return elements.ok() && node.CountFolded(*elements);
}

// The elements of `from` at `places`.
Folded TakePlaces(const Folded& from, const std::vector<int64_t>& places, Shape dims) {
  Folded taken;
  taken.dims = std::move(dims);
  taken.whole = from.whole;
  taken.trained = from.trained;
  for (const int64_t place : places) {
    if (from.whole) {
      taken.integers.push_back(from.integers[static_cast<size_t>(place)]);
    } else {
      taken.floats.push_back(from.floats[static_cast<size_t>(place)]);
    }
  }
  return taken;
}

// A number that leaves the other one as it is.
bool IsNeutral(const std::string& op, int64_t number, bool second) {
  if (op == "Add") return number == 0;
  if (op == "Mul") return number == 1;
  return second && number == (op == "Sub" ? 0 : 1);
}

ShapeNumber Computed(NodeConversion& node, const ShapeNumber& a, const ShapeNumber& b) {
  const std::string& op = node.op();
  if (a.batch || b.batch) {
    if (a.batch && !b.batch && IsNeutral(op, b.value, /*second=*/true)) return a;
    if (b.batch && !a.batch && IsNeutral(op, a.value, /*second=*/false)) return b;
    node.Refuse("arithmetic with the size of the batch");
    return {};
  }
  const absl::int128 x = a.value, y = b.value;
  if (op == "Div" && y == 0) {
    node.Refuse("divides a constant by 0");
    return {};
  }
  const absl::int128 z = op == "Add" ? x + y : op == "Sub" ? x - y : op == "Mul" ? x * y : x / y;
  if (z < std::numeric_limits<int64_t>::min() || z > std::numeric_limits<int64_t>::max()) {
    node.Refuse("a number computed from constants exceeds 64 bits");
    return {};
  }
  return {static_cast<int64_t>(z), false};
}

float Computed(NodeConversion& node, float a, float b) {
  const std::string& op = node.op();
  const float result = op == "Add" ? a + b : op == "Sub" ? a - b : op == "Mul" ? a * b : a / b;
  if (!std::isfinite(result)) node.Refuse("a number computed from constants is not finite");
  return result;
}

void ConvertShape(NodeConversion& node) {
  Folded shape;
  shape.whole = true;
  if (node.IsConstant(0)) {
    for (const int64_t dim : node.ConstantInput(0)->dims) shape.integers.push_back({dim, false});
  } else {
    const ValueId x = node.GraphInput(0);
    if (!node.ok()) return;
    shape.integers.push_back({0, true});
    for (const int64_t dim : node.ShapeOf(x)) shape.integers.push_back({dim, false});
  }
  const int64_t rank = static_cast<int64_t>(shape.integers.size());
  const auto place = [rank](int64_t stated) {
    return std::clamp<int64_t>(stated < 0 ? stated + rank : stated, 0, rank);
  };
  const int64_t start = place(node.Int("start", 0));
  const int64_t end = std::max(start, place(node.Int("end", rank)));
  shape.integers = {shape.integers.begin() + start, shape.integers.begin() + end};
  shape.dims = {end - start};
  OutputFolded(node, shape);
}

void ConvertSqrt(NodeConversion& node) {
  if (!node.IsConstant(0)) return node.Refuse("operator Sqrt is supported for constants only");
  Folded folded = ReadFolded(node, 0);
  if (node.ok() && folded.whole) return node.Refuse("the square root of a whole number");
  for (float& number : folded.floats) {
    number = std::sqrt(number);
    if (!std::isfinite(number)) return node.Refuse("the square root of a negative number");
  }
  OutputFolded(node, folded);
}

// Whole numbers of a constant input and their strides in the shape that all inputs broadcast to.
struct WholeInput {
  Folded folded;
  Strides strides;
};

std::vector<WholeInput> ReadWholeInputs(NodeConversion& node, int count, Shape& dims) {
  std::vector<WholeInput> inputs;
  if (!node.AllConstant() || node.input_count() != count) {
    node.Refuse(absl::StrCat("operator ", node.op(), " is supported for constants only"));
  }
  for (int i = 0; node.ok() && i < count; ++i) {
    inputs.push_back({ReadFolded(node, i), {}});
    if (node.ok() && !inputs.back().folded.whole) node.Refuse("want whole numbers");
    if (!node.ok()) return inputs;
    const std::optional<Shape> both = BroadcastShape(dims, inputs.back().folded.dims);
    if (!both.has_value()) node.Refuse("constants of shapes that do not broadcast");
    if (both.has_value()) dims = *both;
  }
  if (!CountOutput(node, dims)) return inputs;
  for (WholeInput& input : inputs) input.strides = BroadcastStrides(input.folded.dims, dims);
  return inputs;
}

// Whether two numbers are equal, as 0 or 1. A batch is at least 1.
void ConvertEqual(NodeConversion& node) {
  Folded folded;
  folded.whole = true;
  const std::vector<WholeInput> inputs = ReadWholeInputs(node, 2, folded.dims);
  if (!node.ok() || !HasElements(folded.dims)) return OutputFolded(node, folded);
  ForPlaces<2>(folded.dims, {inputs[0].strides, inputs[1].strides}, {0, 0},
               [&](const std::array<int64_t, 2>& at) {
                 const ShapeNumber& a = inputs[0].folded.integers[static_cast<size_t>(at[0])];
                 const ShapeNumber& b = inputs[1].folded.integers[static_cast<size_t>(at[1])];
                 const bool unknown =
                     (a.batch && (b.batch || b.value > 0)) || (b.batch && (a.batch || a.value > 0));
                 if (unknown) node.Refuse("compares the size of the batch");
                 const bool equal = !a.batch && !b.batch && a.value == b.value;
                 folded.integers.push_back({equal ? 1 : 0, false});
               });
  OutputFolded(node, folded);
}

void ConvertWhere(NodeConversion& node) {
  Folded folded;
  folded.whole = true;
  const std::vector<WholeInput> inputs = ReadWholeInputs(node, 3, folded.dims);
  if (!node.ok() || !HasElements(folded.dims)) return OutputFolded(node, folded);
  ForPlaces<3>(
      folded.dims, {inputs[0].strides, inputs[1].strides, inputs[2].strides}, {0, 0, 0},
      [&](const std::array<int64_t, 3>& at) {
        const ShapeNumber& which = inputs[0].folded.integers[static_cast<size_t>(at[0])];
        if (which.batch) node.Refuse("the condition is the size of the batch");
        const size_t from = which.value != 0 ? 1 : 2;
        folded.integers.push_back(inputs[from].folded.integers[static_cast<size_t>(at[from])]);
      });
  OutputFolded(node, folded);
}

constexpr Converter kFolded[] = {
    {"Equal", ConvertEqual},
    {"Shape", ConvertShape},
    {"Sqrt", ConvertSqrt},
    {"Where", ConvertWhere},
};

}  // namespace

void FoldArithmetic(NodeConversion& node) {
  if (node.input_count() != 2) {
    return node.Refuse(absl::StrCat(node.input_count(), " inputs, want 2"));
  }
  const Folded a = ReadFolded(node, 0), b = ReadFolded(node, 1);
  if (!node.ok()) return;
  if (a.whole != b.whole) return node.Refuse("constants of two types");
  const std::optional<Shape> dims = BroadcastShape(a.dims, b.dims);
  if (!dims.has_value()) {
    return node.Refuse(absl::StrCat("constants of the shapes ", ShapeToString(a.dims), " and ",
                                    ShapeToString(b.dims), ", which do not broadcast"));
  }
  if (!CountOutput(node, *dims)) return;
  Folded folded;
  folded.dims = *dims;
  folded.whole = a.whole;
  folded.trained = a.trained || b.trained;
  if (!HasElements(*dims)) return OutputFolded(node, folded);
  const std::array<Strides, 2> strides = {BroadcastStrides(a.dims, *dims),
                                          BroadcastStrides(b.dims, *dims)};
  ForPlaces<2>(*dims, strides, {0, 0}, [&](const std::array<int64_t, 2>& at) {
    const size_t i = static_cast<size_t>(at[0]), k = static_cast<size_t>(at[1]);
    if (a.whole) {
      folded.integers.push_back(Computed(node, a.integers[i], b.integers[k]));
    } else {
      folded.floats.push_back(Computed(node, a.floats[i], b.floats[k]));
    }
  });
  OutputFolded(node, folded);
}

void FoldConcat(NodeConversion& node) {
  if (!node.HasAttribute("axis")) node.Refuse("attribute 'axis' is required");
  const int64_t stated = node.Int("axis", 0);
  std::vector<Folded> parts;
  for (int i = 0; node.ok() && i < node.input_count(); ++i) parts.push_back(ReadFolded(node, i));
  if (!node.ok()) return;
  Shape dims = parts[0].dims;
  const int64_t rank = static_cast<int64_t>(dims.size());
  if (stated < -rank || stated >= rank) return node.Refuse(absl::StrCat("axis ", stated));
  const size_t axis = static_cast<size_t>(stated < 0 ? stated + rank : stated);
  Folded folded;
  folded.whole = parts[0].whole;
  dims[axis] = 0;
  for (const Folded& part : parts) {
    Shape others = part.dims;
    if (others.size() == dims.size()) others[axis] = dims[axis];
    if (part.whole != folded.whole || others != dims) {
      return node.Refuse("constants of different types or shapes");
    }
    folded.trained = folded.trained || part.trained;
    dims[axis] += part.dims[axis];
  }
  if (!CountOutput(node, dims)) return;
  folded.dims = dims;
  const int64_t rows = HasElements(dims) ? ElementsBetween(dims, 0, axis) : 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (const Folded& part : parts) {
      const int64_t size = ElementsBetween(part.dims, axis, part.dims.size());
      const auto append = [&](const auto& from, auto& to) {
        to.insert(to.end(), from.begin() + row * size, from.begin() + (row + 1) * size);
      };
      if (folded.whole) append(part.integers, folded.integers);
      if (!folded.whole) append(part.floats, folded.floats);
    }
  }
  OutputFolded(node, folded);
}

void FoldGather(NodeConversion& node) {
  const int64_t stated = node.Int("axis", 0);
  const Folded data = ReadFolded(node, 0), indices = ReadFolded(node, 1);
  if (!node.ok()) return;
  const int64_t rank = static_cast<int64_t>(data.dims.size());
  if (stated < -rank || stated >= rank) return node.Refuse(absl::StrCat("axis ", stated));
  if (!indices.whole) return node.Refuse("the indices are no whole numbers");
  const size_t axis = static_cast<size_t>(stated < 0 ? stated + rank : stated);
  Shape dims(data.dims.begin(), data.dims.begin() + static_cast<std::ptrdiff_t>(axis));
  dims.insert(dims.end(), indices.dims.begin(), indices.dims.end());
  dims.insert(dims.end(), data.dims.begin() + static_cast<std::ptrdiff_t>(axis) + 1,
              data.dims.end());
  if (!CountOutput(node, dims)) return;
  const int64_t size = data.dims[axis];
  const int64_t below = ElementsBetween(data.dims, axis + 1, data.dims.size());
  std::vector<int64_t> places;
  const int64_t rows = HasElements(dims) ? ElementsBetween(data.dims, 0, axis) : 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (const ShapeNumber& index : indices.integers) {
      const int64_t from = index.value < 0 ? index.value + size : index.value;
      if (index.batch || from < 0 || from >= size) {
        return node.Refuse(absl::StrCat("index ", index.value, " of an axis of ", size));
      }
      for (int64_t i = 0; i < below; ++i) places.push_back((row * size + from) * below + i);
    }
  }
  OutputFolded(node, TakePlaces(data, places, std::move(dims)));
}

void FoldSlice(NodeConversion& node, SliceNode slice) {
  const Folded data = ReadFolded(node, 0);
  if (!node.ok()) return;
  const int64_t rank = static_cast<int64_t>(data.dims.size());
  // The operator's axes begin behind the batch, of which a constant has none.
  for (int64_t& axis : slice.axes) {
    if (axis < -rank || axis >= rank) return node.Refuse(absl::StrCat("axis ", axis));
    axis = (axis < 0 ? axis + rank : axis) + 1;
  }
  if (!HasElements(data.dims)) return node.Refuse("a constant without elements");
  Operator op = slice;
  const ValueType type = {data.dims, DType::kFloat32};
  const absl::StatusOr<Inference> inferred = SliceOp().infer({&type, 1}, op.attributes);
  if (!inferred.ok()) return node.Refuse(inferred.status().message());
  if (!CountOutput(node, inferred->output.shape)) return;
  slice = SliceNode::Read(op.attributes);
  std::array<Strides, 1> strides = {StridesOf(data.dims)};
  int64_t first = 0;
  for (size_t i = 0; i < slice.axes.size(); ++i) {
    int64_t& stride = strides[0][static_cast<size_t>(slice.axes[i]) - 1];
    first += slice.starts[i] * stride;
    stride *= slice.steps[i];
  }
  std::vector<int64_t> places;
  ForPlaces<1>(inferred->output.shape, strides, {first},
               [&](const std::array<int64_t, 1>& at) { places.push_back(at[0]); });
  OutputFolded(node, TakePlaces(data, places, inferred->output.shape));
}

void FoldCast(NodeConversion& node, bool to_whole) {
  Folded folded = ReadFolded(node, 0);
  if (!node.ok()) return;
  for (const ShapeNumber& number : folded.integers) {
    if (to_whole) continue;
    if (number.batch) return node.Refuse("arithmetic with the size of the batch");
    folded.floats.push_back(static_cast<float>(number.value));
  }
  if (!to_whole) folded.integers.clear();
  for (const float number : folded.floats) {
    if (!to_whole) continue;
    if (std::abs(number) >= 0x1p63f) {
      return node.Refuse("a number computed from constants exceeds 64 bits");
    }
    folded.integers.push_back({static_cast<int64_t>(number), false});
  }
  if (to_whole) folded.floats.clear();
  folded.whole = to_whole;
  OutputFolded(node, folded);
}

absl::Span<const Converter> FoldedConverters() { return kFolded; }

}  // namespace capstan::training::onnx
