// Windows, poolings and reductions.
#include <algorithm>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "training/onnx/importer.h"
#include "training/onnx/window_attributes.h"
#include "training/ops/arithmetic/arithmetic.h"
#include "training/ops/cast/cast.h"
#include "training/ops/constant_of_shape/constant_of_shape.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/global_average_pool/global_average_pool.h"
#include "training/ops/reduce/reduce.h"
#include "training/ops/window.h"

namespace capstan::training::onnx {

void CopyWindow(NodeConversion& node, Operator& op) {
  for (const char* const name : {"kernel_shape", "strides", "pads", "dilations"}) {
    std::vector<int64_t> values = node.Ints(name);
    if (!values.empty()) op.attributes.Set(name, std::move(values));
  }
  op.attributes.Set("auto_pad", node.Text("auto_pad", "NOTSET"));
}

namespace {

// ceil_mode rounds the number of windows up, as long as the last one begins before the padding at
// the end. More padding at the end gives the same windows.
void PadForCeil(NodeConversion& node, const Shape& x, Operator& op) {
  if (op.attributes.Text("auto_pad") != "NOTSET") {
    return node.Refuse("attribute 'ceil_mode' beside auto_pad is not supported");
  }
  Window window;
  const auto read = [&op](const char* name, auto& values) {
    if (!op.attributes.Has(name)) return true;
    const std::vector<int64_t>& from = op.attributes.Ints(name);
    if (from.size() != values.size()) return false;
    std::copy(from.begin(), from.end(), values.begin());
    return true;
  };
  const bool lengths = x.size() == 3 && read("kernel_shape", window.kernel_shape) &&
                       read("strides", window.strides) && read("pads", window.pads) &&
                       read("dilations", window.dilations);
  if (!lengths) return;  // Append says what is wrong
  for (int axis = 0; axis < 2; ++axis) {
    if (window.kernel_shape[axis] < 1 || window.strides[axis] < 1 || window.dilations[axis] < 1 ||
        window.pads[axis] < 0 || window.pads[axis + 2] < 0 ||
        window.pads[axis + 2] > kMaxTensorElements) {
      return;
    }
    const absl::int128 stride = window.strides[axis];
    const absl::int128 reach =
        absl::int128(window.dilations[axis]) * (window.kernel_shape[axis] - 1) + 1;
    const absl::int128 before = absl::int128(x[axis + 1]) + window.pads[axis];
    const absl::int128 padded = before + window.pads[axis + 2];
    if (padded < reach) return;
    absl::int128 windows = (padded - reach + stride - 1) / stride + 1;
    if ((windows - 1) * stride >= before) --windows;
    const absl::int128 extra = (windows - 1) * stride + reach - padded;
    if (extra > kMaxTensorElements) return node.Refuse("attribute 'ceil_mode': too much padding");
    if (extra > 0) window.pads[axis + 2] += static_cast<int64_t>(extra);
  }
  op.attributes.Set("pads", std::vector<int64_t>(window.pads.begin(), window.pads.end()));
}

void ConvertPool(NodeConversion& node) {
  const ValueId x = node.GraphInput(0);
  Operator op{node.op(), {}};
  CopyWindow(node, op);
  const bool counts_padding = node.Int("count_include_pad", 0) != 0;
  if (counts_padding) op.attributes.Set("count_include_pad", int64_t{1});
  node.Ignore("storage_order");  // of the second output
  if (node.Int("ceil_mode", 0) != 0) {
    if (counts_padding) node.Refuse("attribute 'ceil_mode' beside count_include_pad");
    if (node.ok()) PadForCeil(node, node.ShapeOf(x), op);
  }
  node.Output(node.Append(std::move(op), {x}));
}

// ONNX cuts off what follows the point of a mean of whole numbers. The sum is divided, because a
// device may multiply by 1 / count for a mean, and such a product may be below a whole number. Sums
// up to 2^24 are exact.
ValueId AppendWholeMean(NodeConversion& node, ValueId x, const std::vector<int64_t>& axes,
                        bool keeps) {
  const ValueId sum = node.AppendAs(ReduceSum{axes, keeps}, {x}, {}, "", "", "");
  if (!node.ok()) return x;  // the axes are checked there
  const int64_t count = Elements(node.ShapeOf(x)) / Elements(node.ShapeOf(sum));
  const ValueId divisor =
      node.AppendAs(ConstantOfShape{{1}, static_cast<double>(count)}, {}, {}, "", "", "");
  const ValueId mean = node.AppendAs(Div(), {sum, divisor}, {}, "", "", "");
  return node.Append(Cast{"int64"}, {mean});
}

// Axes are an attribute before the operator set `inputs_since`, then an input.
void ConvertReduce(NodeConversion& node, int64_t inputs_since) {
  const ValueId x = node.GraphInput(0);
  std::vector<int64_t> axes;
  if (node.operator_set() < inputs_since) axes = node.Ints("axes");
  if (node.operator_set() >= inputs_since && node.Has(1)) axes = node.Integers(1);
  const bool keeps = node.Int("keepdims", 1) != 0;
  const bool nothing = node.Int("noop_with_empty_axes", 0) != 0;
  if (!node.ok()) return;
  if (axes.empty() && nothing) return node.Output(x);
  if (axes.empty()) return node.Refuse("reduces all axes, and so the batch");
  for (int64_t& axis : axes) axis = node.SampleAxis(axis, node.RankOf(x));
  if (!node.ok()) return;
  if (node.op() == ReduceMean::kName && node.IsWholeValue(0)) {
    return node.Output(AppendWholeMean(node, x, axes, keeps));
  }
  std::vector<int64_t> sorted = axes;
  std::sort(sorted.begin(), sorted.end());
  const bool plane = sorted == std::vector<int64_t>{2, 3} && node.ShapeOf(x).size() == 3;
  if (node.op() != ReduceMean::kName || !plane) {
    return node.Output(
        node.Append({node.op(), {{"axes", axes}, {"keepdims", int64_t{keeps}}}}, {x}));
  }
  // The mean over height and width has a kernel of its own.
  const ValueId mean = node.Append(GlobalAveragePool(), {x});
  node.Output(keeps ? mean : node.Append(Flatten(), {mean}));
}

void ConvertReduceMean(NodeConversion& node) { ConvertReduce(node, 18); }
void ConvertReduceSum(NodeConversion& node) { ConvertReduce(node, 13); }

constexpr Converter kPools[] = {
    {"AveragePool", ConvertPool},
    {"MaxPool", ConvertPool},
    {"ReduceMean", ConvertReduceMean},
    {"ReduceSum", ConvertReduceSum},
};

}  // namespace

absl::Span<const Converter> PoolConverters() { return kPools; }

}  // namespace capstan::training::onnx
