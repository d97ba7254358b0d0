// Operators that take a part of a value, or put something around it. Where these parts begin must be
// constant. An axis counts with the batch, which must stay whole.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "training/onnx/importer.h"
#include "training/ops/cast/cast.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gather/gather.h"
#include "training/ops/pad/pad.h"
#include "training/ops/reshape/reshape.h"
#include "training/ops/slice/slice.h"

namespace capstan::training::onnx {
namespace {

constexpr int64_t kMostInt32 = std::numeric_limits<int32_t>::max();

// The numbers of a Slice: attributes before operator set 10, then inputs.
SliceNode SliceNumbers(NodeConversion& node, std::vector<ShapeNumber>& ends) {
  SliceNode slice;
  if (node.operator_set() < 10) {
    slice.starts = node.Ints("starts");
    for (const int64_t end : node.Ints("ends")) ends.push_back({end, false});
    slice.axes = node.Ints("axes");
    return slice;
  }
  slice.starts = node.Integers(1);
  ends = node.ShapeNumbers(2);
  if (node.Has(3)) slice.axes = node.Integers(3);
  if (node.Has(4)) slice.steps = node.Integers(4);
  return slice;
}

void ConvertSlice(NodeConversion& node) {
  std::vector<ShapeNumber> ends;
  SliceNode slice = SliceNumbers(node, ends);
  if (!node.ok()) return;
  const size_t count = slice.starts.size();
  if (slice.axes.empty()) {
    for (size_t i = 0; i < count; ++i) slice.axes.push_back(static_cast<int64_t>(i));
  }
  if (slice.steps.empty()) slice.steps.assign(count, 1);
  if (ends.size() != count || slice.axes.size() != count || slice.steps.size() != count) {
    return node.Refuse(absl::StrCat(count, " starts, ", ends.size(), " ends, ", slice.axes.size(),
                                    " axes and ", slice.steps.size(), " steps"));
  }
  const bool constant = node.IsConstant(0);
  const ValueId x = constant ? -1 : node.GraphInput(0);
  if (!node.ok()) return;
  SliceNode sample;
  for (size_t i = 0; i < count; ++i) {
    if (!constant && (slice.axes[i] == 0 || slice.axes[i] == -node.RankOf(x))) {
      // All of the batch, as exporters write x[:, 1:].
      const bool all = ends[i].batch || ends[i].value >= kMostInt32 ||
                       (node.batch() > 0 && ends[i].value >= node.batch());
      if (slice.starts[i] == 0 && slice.steps[i] == 1 && all) continue;
      return node.Refuse("a part of axis 0, the batch, whose samples cannot be told apart");
    }
    if (ends[i].batch) return node.Refuse("ends at the size of the batch");
    sample.starts.push_back(slice.starts[i]);
    sample.ends.push_back(ends[i].value);
    sample.axes.push_back(constant ? slice.axes[i]
                                   : node.SampleAxis(slice.axes[i], node.RankOf(x)));
    sample.steps.push_back(slice.steps[i]);
  }
  if (!node.ok()) return;
  if (constant) return FoldSlice(node, std::move(sample));
  node.Output(sample.starts.empty() ? x : node.Append(sample, {x}));
}

// The lengths of the parts, from an attribute or an input, or equal ones.
std::vector<int64_t> SplitLengths(NodeConversion& node, int64_t size) {
  std::vector<int64_t> lengths;
  if (node.operator_set() < 13) lengths = node.Ints("split");
  if (node.operator_set() >= 13 && node.Has(1)) lengths = node.Integers(1);
  const int64_t parts = node.output_count();
  const int64_t stated = node.operator_set() >= 18 ? node.Int("num_outputs", parts) : parts;
  if (!node.ok()) return {};
  if (stated != parts) node.Refuse(absl::StrCat(parts, " outputs, want ", stated));
  if (lengths.empty()) {
    // Only the last one may be shorter.
    const int64_t each = (size + parts - 1) / parts;
    for (int64_t i = 0; i < parts; ++i) lengths.push_back(std::min(each, size - i * each));
  }
  int64_t rest = size;
  for (const int64_t length : lengths) {
    if (length < 1 || length > rest) node.Refuse("want parts of at least 1 that fill the axis");
    if (!node.ok()) return {};
    rest -= length;
  }
  if (rest != 0 || static_cast<int64_t>(lengths.size()) != parts) {
    node.Refuse(absl::StrCat(lengths.size(), " parts of an axis of ", size, " for ", parts,
                             " outputs, want parts that fill the axis"));
  }
  return lengths;
}

// A Slice for each part that is read.
void ConvertSplit(NodeConversion& node) {
  const ValueId x = node.GraphInput(0);
  const int64_t stated = node.Int("axis", 0);
  if (!node.ok()) return;
  const int64_t axis = node.SampleAxis(stated, node.RankOf(x));
  if (!node.ok()) return;
  const int64_t size = node.ShapeOf(x)[static_cast<size_t>(axis) - 1];
  if (node.output_count() > size) return node.Refuse("want parts of at least 1 that fill the axis");
  const std::vector<int64_t> lengths = SplitLengths(node, size);
  int64_t first = 0;
  for (int i = 0; node.ok() && i < node.output_count(); ++i) {
    const int64_t end = first + lengths[static_cast<size_t>(i)];
    if (!node.output_name(i).empty() && node.IsRead(i)) {
      node.OutputAt(i, node.AppendAs(SliceNode{{first}, {end}, {axis}, {1}}, {x}, {}, "",
                                     node.file_name(), node.output_name(i)));
    }
    first = end;
  }
}

// Rows of a constant table, as of an embedding. The operator itself cuts off what follows the point
// of an index, so a Cast to whole numbers that nothing else reads is left out.
void LookUpRows(NodeConversion& node) {
  const int64_t axis = node.Int("axis", 0);
  const Constant* const table = node.ConstantInput(0);
  ValueId indices = node.GraphInput(1);
  if (!node.ok()) return;
  const auto rank = static_cast<int64_t>(table->dims.size());
  if (rank == 0 || (axis != 0 && axis != -rank)) {
    return node.Refuse(absl::StrCat("looks up places of axis ", axis, " of a constant of shape ",
                                    ShapeToString(table->dims), ", want rows: axis 0"));
  }
  const ImportedNode* const cast = node.OnlyReaderOf(1);
  if (cast != nullptr && cast->op.name == Cast::kName) indices = cast->inputs[0];
  const ValueId rows = node.Operand(0, rank + 1, "initializer");
  if (node.ok()) node.Output(node.Append(Gather(), {rows, indices}));
}

// Of a value, one index, or several in a row, is a Slice. Others need an operator of their own.
void ConvertGather(NodeConversion& node) {
  if (node.AllConstant()) return FoldGather(node);
  if (node.IsConstant(0)) return LookUpRows(node);
  const ValueId x = node.GraphInput(0);
  const int64_t stated = node.Int("axis", 0);
  std::vector<int64_t> indices = node.Integers(1);
  if (!node.ok()) return;
  const int64_t axis = node.SampleAxis(stated, node.RankOf(x));
  if (!node.ok()) return;
  const size_t place = static_cast<size_t>(axis) - 1;
  const int64_t size = node.ShapeOf(x)[place];
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0) indices[i] += size;
    if (indices[i] < 0 || indices[i] >= size) {
      return node.Refuse(absl::StrCat("an index outside of axis ", axis, " of ", size));
    }
    if (i > 0 && indices[i] != indices[i - 1] + 1) {
      return node.Refuse("indices that are not in a row are not supported");
    }
  }
  if (indices.empty()) return node.Refuse("no indices");
  const ValueId part =
      node.Append(SliceNode{{indices.front()}, {indices.back() + 1}, {axis}, {1}}, {x});
  if (!node.ok() || !node.ConstantInput(1)->dims.empty()) return node.Output(part);
  // A single number takes the axis away.
  Shape shape = node.ShapeOf(x);
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(place));
  if (shape.empty()) return node.Refuse("leaves samples without a dimension");
  node.Output(shape.size() == 1 ? node.Append(Flatten(), {part})
                                : node.Append(Reshape{std::move(shape)}, {part}));
}

// Attributes before operator set 11, then inputs.
void ConvertPad(NodeConversion& node) {
  const ValueId x = node.GraphInput(0);
  const std::string mode = node.Text("mode", "constant");
  if (node.ok() && mode != "constant") {
    return node.Refuse(absl::StrCat("attribute 'mode' is ", mode, ", want constant"));
  }
  Pad pad;
  const bool old = node.operator_set() < 11;
  const std::vector<int64_t> stated = old ? node.Ints("pads") : node.Integers(1);
  if (old) pad.value = node.Float("value", 0);
  if (!old && node.Has(2) && !node.Scalar(2, pad.value)) return;
  std::vector<int64_t> axes;
  if (node.operator_set() >= 18 && node.Has(3)) axes = node.Integers(3);
  if (!node.ok()) return;
  const int64_t rank = node.RankOf(x);
  const bool all = axes.empty();
  for (int64_t i = 0; all && i < rank; ++i) axes.push_back(i);
  if (stated.size() != 2 * axes.size()) {
    return node.Refuse(
        absl::StrCat(stated.size(), " pads, want two for each of ", axes.size(), " axes"));
  }
  pad.pads.assign(2 * static_cast<size_t>(rank - 1), 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t before = stated[i], after = stated[axes.size() + i];
    if (before == 0 && after == 0) continue;
    const int64_t axis = node.SampleAxis(axes[i], rank);
    if (!node.ok()) return;
    pad.pads[static_cast<size_t>(axis) - 1] = before;
    pad.pads[static_cast<size_t>(axis + rank) - 2] = after;
  }
  node.Output(node.Append(pad, {x}));
}

// A constant that is repeated for each sample.
void ConvertExpand(NodeConversion& node) {
  if (!node.IsConstant(0)) {
    return node.Refuse("is supported for a constant that is repeated along the batch only");
  }
  const Shape& from = node.ConstantInput(0)->dims;
  const std::vector<ShapeNumber> to = node.ShapeNumbers(1);
  if (!node.ok()) return;
  bool fits = to.size() == from.size() && to.size() > 1 &&
              (to[0].batch || (node.batch() > 0 && to[0].value == node.batch()));
  for (size_t i = 1; fits && i < to.size(); ++i) {
    fits = !to[i].batch && (to[i].value == 1 || to[i].value == from[i]);
  }
  if (!fits)
    return node.Refuse("is supported for a constant that is repeated along the batch only");
  node.Output(node.Operand(0, static_cast<int64_t>(from.size()), "initializer"));
}

constexpr Converter kSlices[] = {
    {"Expand", ConvertExpand}, {"Gather", ConvertGather}, {"Pad", ConvertPad},
    {"Slice", ConvertSlice},   {"Split", ConvertSplit},
};

}  // namespace

absl::Span<const Converter> SliceConverters() { return kSlices; }

}  // namespace capstan::training::onnx
