// Operators without parameters that keep or pool shapes, and what stands at the end of a network.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "training/onnx/importer.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/reshape/reshape.h"

namespace capstan::training::onnx {
namespace {

// All inputs are values of the graph, and attributes have ONNX's names and meanings here.
void ConvertAsItIs(NodeConversion& node) {
  Operator op{node.op(), {}};
  node.CopyAttributes(op);
  node.Output(node.Append(std::move(op), node.AllGraphInputs()));
}

void ConvertDropout(NodeConversion& node) {
  Dropout op;
  if (node.operator_set() < 12) {
    op.ratio = node.Float("ratio", op.ratio);
  } else if (node.Has(1) && !node.Scalar(1, op.ratio)) {
    return;
  }
  if (!node.for_training() && node.Has(2) && node.Flag(2)) {
    return node.Refuse("input 2, training_mode, is true: the file is meant for training");
  }
  node.Ignore("seed");     // a job has its own
  node.Ignore("is_test");  // says whether the file is meant for training
  node.Output(node.Append(op, {node.GraphInput(0)}));
}

// The limits are inputs since operator set 11.
void ConvertClip(NodeConversion& node) {
  Operator op{"Clip", {}};
  if (node.operator_set() < 11) {
    node.CopyAttributes(op);
  } else {
    static constexpr const char* kNames[] = {"min", "max"};
    for (int i = 0; i < 2; ++i) {
      double limit = 0;
      if (node.Has(i + 1) && node.Scalar(i + 1, limit)) op.attributes.Set(kNames[i], limit);
    }
  }
  node.Output(node.Append(std::move(op), {node.GraphInput(0)}));
}

void ConvertSoftmax(NodeConversion& node) {
  const ValueId x = node.GraphInput(0);
  // Before operator set 13, the axis and those behind it are one.
  const bool joins = node.operator_set() < 13;
  const int64_t stated = node.Int("axis", joins ? 1 : -1);
  if (!node.ok()) return;
  const int64_t axis = node.SampleAxis(stated, node.RankOf(x));
  if (!node.ok()) return;
  const Shape& shape = node.ShapeOf(x);
  const bool all = joins ? axis == 1 : shape[axis - 1] == Elements(shape);
  if (node.makes_softmax_output() && all) return node.DropFinalActivation(x);
  // Joined axes of 1 change nothing.
  const bool one = std::all_of(shape.begin() + axis, shape.end(), [](int64_t n) { return n == 1; });
  if (joins && !one && axis == 1) {  // all of a sample
    const ValueId row = node.Append(Flatten(), {x});
    const ValueId y = node.Append({node.op(), {{"axis", int64_t{1}}}}, {row});
    return node.Output(node.ok() ? node.Append(Reshape{Shape(node.ShapeOf(x))}, {y}) : -1);
  }
  if (joins && !one) {
    return node.Refuse(absl::StrCat("axis ", stated, " joins several dimensions"));
  }
  node.Output(node.Append({node.op(), {{"axis", axis}}}, {x}));
}

constexpr Converter kPointwise[] = {
    {"Clip", ConvertClip},
    {"Dropout", ConvertDropout},
    {"Gelu", ConvertAsItIs},
    {"GlobalAveragePool", ConvertAsItIs},
    {"GlobalMaxPool", ConvertAsItIs},
    {"LRN", ConvertAsItIs},
    {"LeakyRelu", ConvertAsItIs},
    {"LogSoftmax", ConvertSoftmax},
    {"Relu", ConvertAsItIs},
    {"Sigmoid", ConvertAsItIs},
    {"Softmax", ConvertSoftmax},
    {"Sum", ConvertAsItIs},
    {"Tanh", ConvertAsItIs},
};

}  // namespace

absl::Span<const Converter> PointwiseConverters() { return kPointwise; }

}  // namespace capstan::training::onnx
