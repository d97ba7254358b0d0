// Operators that change shapes. Those of constants change the view of the tensor.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "training/onnx/importer.h"
#include "training/ops/concat/concat.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/reshape/reshape.h"

namespace capstan::training::onnx {
namespace {

void OutputReshaped(NodeConversion& node, const Constant& from, Shape dims) {
  const absl::StatusOr<int64_t> elements = CheckedElements(dims, node.limits(), "output");
  if (!elements.ok()) return node.Refuse(elements.status().message());
  if (*elements != from.elements) {
    return node.Refuse(absl::StrCat("shape ", ShapeToString(dims), " of a constant of shape ",
                                    ShapeToString(from.dims)));
  }
  if (from.transposed) return node.Refuse("the shape of a transposed constant is changed");
  Constant to = from;
  to.dims = std::move(dims);
  node.Output(std::move(to));
}

// `shape` is of one sample, with the elements of the value.
void OutputReshaped(NodeConversion& node, ValueId x, Shape shape) {
  if (!node.ok()) return;
  if (shape == node.ShapeOf(x)) return node.Output(x);
  if (shape.empty()) return node.Refuse("leaves samples without a dimension");
  if (shape.size() == 1) return node.Output(node.Append(Flatten(), {x}));
  node.Output(node.Append(Reshape{std::move(shape)}, {x}));
}

// Replaces 0 and -1 in the shape of a Reshape of a constant.
void ReshapeConstant(NodeConversion& node, Shape shape) {
  const Constant* const from = node.ConstantInput(0);
  if (!node.ok()) return;
  int64_t known = 1;
  int64_t* free = nullptr;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0 && i < from->dims.size()) shape[i] = from->dims[i];
    if (shape[i] == -1 && free == nullptr) {
      free = &shape[i];
    } else if (shape[i] < 1 || known > from->elements / shape[i]) {
      return node.Refuse(absl::StrCat("shape ", ShapeToString(shape), " of a constant of shape ",
                                      ShapeToString(from->dims)));
    } else {
      known *= shape[i];
    }
  }
  if (free != nullptr) *free = from->elements / known;
  OutputReshaped(node, *from, std::move(shape));
}

// The shape of a Reshape, and whether the size of the batch is in front, which is then 0.
Shape ReshapeNumbers(NodeConversion& node, bool& batch_in_front) {
  Shape shape;
  for (const ShapeNumber& number : node.ShapeNumbers(1)) {
    if (number.batch && !shape.empty()) node.Refuse("the size of the batch is not in front");
    batch_in_front = batch_in_front || number.batch;
    shape.push_back(number.batch ? 0 : number.value);
  }
  return shape;
}

void ConvertReshape(NodeConversion& node) {
  bool batch_in_front = false;
  const Shape shape = ReshapeNumbers(node, batch_in_front);
  bool zeros_stay = node.Int("allowzero", 0) != 0;
  if (!node.ok()) return;
  if (batch_in_front) zeros_stay = zeros_stay && std::count(shape.begin(), shape.end(), 0) > 1;
  if (zeros_stay && std::find(shape.begin(), shape.end(), 0) != shape.end()) {
    return node.Refuse("attribute 'allowzero' and a 0 in the shape");
  }
  if (node.IsConstant(0)) {
    if (batch_in_front) return node.Refuse("a constant takes the size of the batch");
    return ReshapeConstant(node, shape);
  }
  const ValueId x = node.GraphInput(0);
  if (!node.ok()) return;
  const auto error = [&](absl::string_view want) {
    node.Refuse(absl::StrCat("shape ", ShapeToString(shape), " of samples ",
                             ShapeToString(node.ShapeOf(x)), ", want ", want));
  };
  const int64_t batch = node.batch();
  const bool fronts =
      !shape.empty() && (shape[0] == -1 || shape[0] == 0 || shape[0] == (batch > 0 ? batch : 1));
  if (shape.size() < 2 || !fronts) {
    return error("the batch in front, as 1, 0 or -1, and samples that are not mixed");
  }
  Shape sample(shape.begin() + 1, shape.end());
  const int64_t free = std::count(sample.begin(), sample.end(), -1);
  if (free > (shape[0] == -1 ? 0 : 1)) return error("one -1 at most");
  if (shape[0] == 1 && free == 1 && batch != 1) {
    return error("0 in front, since 1 puts all samples of a larger batch into one");
  }
  const Shape& from = node.ShapeOf(x);
  if (sample.size() == 1) {
    if (sample[0] == 0) sample[0] = from[0];
    if (sample[0] == -1) sample[0] = Elements(from);
    if (sample[0] != Elements(from)) {
      return error(absl::StrCat(Elements(from), " elements, since samples cannot be mixed"));
    }
  }
  OutputReshaped(node, x, std::move(sample));
}

void ConvertFlatten(NodeConversion& node) {
  const int64_t axis = node.Int("axis", 1);
  if (node.IsConstant(0)) {
    const Constant* const from = node.ConstantInput(0);
    const int64_t rank = static_cast<int64_t>(from->dims.size());
    if (axis < -rank || axis > rank) return node.Refuse(absl::StrCat("axis ", axis));
    Shape dims = {1, 1};
    for (int64_t i = 0; i < rank; ++i)
      dims[i < (axis < 0 ? axis + rank : axis) ? 0 : 1] *= from->dims[i];
    return OutputReshaped(node, *from, std::move(dims));
  }
  const ValueId x = node.GraphInput(0);
  if (!node.ok()) return;
  if (axis != 1 && axis != 1 - node.RankOf(x)) {
    return node.Refuse(absl::StrCat("axis ", axis, ", want 1, since the batch cannot be mixed"));
  }
  OutputReshaped(node, x, {Elements(node.ShapeOf(x))});
}

// The axes of Squeeze and Unsqueeze: an attribute before operator set 13.
std::vector<int64_t> AxesOf(NodeConversion& node) {
  std::vector<int64_t> axes = node.operator_set() < 13
                                  ? node.Ints("axes")
                                  : (node.Has(1) ? node.Integers(1) : std::vector<int64_t>());
  if (axes.empty()) node.Refuse("names no axes");
  return axes;
}

// From the front, rising. Refuses those that do not exist, or twice, and the batch of a value.
std::vector<int64_t> FromFront(NodeConversion& node, std::vector<int64_t> axes, int64_t rank,
                               bool constant) {
  for (int64_t& axis : axes) {
    if (constant && (axis == 0 || axis == -rank) && rank > 0) {
      axis = 0;
    } else {
      axis = node.SampleAxis(axis, rank);
    }
  }
  std::sort(axes.begin(), axes.end());
  if (std::adjacent_find(axes.begin(), axes.end()) != axes.end()) node.Refuse("an axis twice");
  return axes;
}

// Dimensions of the first input with the batch as 1.
Shape DimsOf(NodeConversion& node) {
  if (node.IsConstant(0)) return node.ConstantInput(0)->dims;
  const ValueId x = node.GraphInput(0);
  if (!node.ok()) return {};
  Shape dims = {1};
  dims.insert(dims.end(), node.ShapeOf(x).begin(), node.ShapeOf(x).end());
  return dims;
}

void OutputDims(NodeConversion& node, Shape dims) {
  if (!node.ok()) return;
  if (node.IsConstant(0)) return OutputReshaped(node, *node.ConstantInput(0), std::move(dims));
  dims.erase(dims.begin());
  OutputReshaped(node, node.GraphInput(0), std::move(dims));
}

void ConvertSqueeze(NodeConversion& node) {
  Shape dims = DimsOf(node);
  std::vector<int64_t> axes = AxesOf(node);
  if (!node.ok()) return;
  axes = FromFront(node, std::move(axes), static_cast<int64_t>(dims.size()), node.IsConstant(0));
  for (auto axis = axes.rbegin(); node.ok() && axis != axes.rend(); ++axis) {
    if (dims[*axis] != 1) {
      return node.Refuse(absl::StrCat("axis ", *axis, " has the size ", dims[*axis], ", want 1"));
    }
    dims.erase(dims.begin() + *axis);
  }
  OutputDims(node, std::move(dims));
}

void ConvertUnsqueeze(NodeConversion& node) {
  Shape dims = DimsOf(node);
  std::vector<int64_t> axes = AxesOf(node);
  if (!node.ok()) return;
  const int64_t rank = static_cast<int64_t>(dims.size() + axes.size());
  axes = FromFront(node, std::move(axes), rank, node.IsConstant(0));
  if (rank > node.limits().max_dims) {
    node.Refuse(absl::StrCat(rank, " dimensions, want at most ", node.limits().max_dims));
  }
  if (!node.ok()) return;
  for (const int64_t axis : axes) dims.insert(dims.begin() + axis, 1);
  OutputDims(node, std::move(dims));
}

void ConvertTranspose(NodeConversion& node) {
  std::vector<int64_t> perm = node.Ints("perm");
  const int64_t rank = static_cast<int64_t>(DimsOf(node).size());
  if (!node.ok()) return;
  if (perm.empty()) {
    for (int64_t i = rank; i > 0; --i) perm.push_back(i - 1);
  }
  std::vector<int64_t> sorted = perm;
  std::sort(sorted.begin(), sorted.end());
  bool valid = static_cast<int64_t>(sorted.size()) == rank;
  for (int64_t i = 0; valid && i < rank; ++i) valid = sorted[i] == i;
  if (!valid) return node.Refuse(absl::StrCat("attribute 'perm' is no order of ", rank, " axes"));
  const bool same = perm == sorted;
  if (node.IsConstant(0)) {
    Constant view = *node.ConstantInput(0);
    if (!same && rank != 2) return node.Refuse("transposes a constant that is not a matrix");
    if (!same && !view.batch.empty()) return node.Refuse("moves the size of the batch");
    if (!same) {
      std::swap(view.dims[0], view.dims[1]);
      view.transposed = !view.transposed;
    }
    return node.Output(std::move(view));
  }
  if (perm[0] != 0) return node.Refuse("attribute 'perm' moves the batch");
  if (same) return node.Output(node.GraphInput(0));
  perm.erase(perm.begin());  // here without the batch
  node.Output(node.Append({"Transpose", {{"perm", perm}}}, {node.GraphInput(0)}));
}

void ConvertConcat(NodeConversion& node) {
  if (node.AllConstant()) return FoldConcat(node);
  if (!node.HasAttribute("axis")) node.Refuse("attribute 'axis' is required");
  const int64_t axis = node.Int("axis", 1);
  // A constant has one sample, as the file's batch.
  const bool constants = node.batch() == 1;
  int64_t rank = 0;
  for (int i = 0; constants && i < node.input_count(); ++i) {
    if (node.IsConstant(i)) continue;
    const ValueId value = node.GraphInput(i);
    if (!node.ok()) return;
    rank = node.RankOf(value);
  }
  std::vector<ValueId> inputs;
  for (int i = 0; rank > 0 && i < node.input_count(); ++i) {
    if (node.IsConstant(i) && static_cast<int64_t>(node.ConstantInput(i)->dims.size()) != rank) {
      return node.Refuse(absl::StrCat("input ", i, ": want ", rank, " dimensions"));
    }
    inputs.push_back(node.Operand(i, rank, "initializer"));
  }
  if (!constants) inputs = node.AllGraphInputs();
  if (!node.ok()) return;
  if (inputs.empty()) return node.Refuse("no inputs");
  const Concat op{node.SampleAxis(axis, node.RankOf(inputs[0]))};
  node.Output(node.Append(op, std::move(inputs)));
}

constexpr Converter kShapes[] = {
    {"Concat", ConvertConcat},   {"Flatten", ConvertFlatten},     {"Reshape", ConvertReshape},
    {"Squeeze", ConvertSqueeze}, {"Transpose", ConvertTranspose}, {"Unsqueeze", ConvertUnsqueeze},
};

}  // namespace

absl::Span<const Converter> ShapeConverters() { return kShapes; }

}  // namespace capstan::training::onnx
