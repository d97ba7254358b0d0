#include "gpu_worker/engine/cpu/lowering.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gpu_worker/engine/device/chain.h"
#include "training/ops/conv/conv.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/pool/pool.h"
#include "training/ops/relu/relu.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::engine {
namespace {

using training::Graph;
using training::GraphNode;
using training::Shape;

template <typename Op>
bool Is(const GraphNode& node) {
  return node.op.name == Op::kName;
}

// A value's tensor and shape; [features] is channels.
struct View {
  int tensor = 0;
  int64_t channels = 1, height = 1, width = 1;
  bool nhwc = false;  // and height * width > 1
};

class Lowering {
 public:
  explicit Lowering(const Graph& graph) : graph_(graph), views_(graph.value_count()) {}

  absl::StatusOr<Lowered> Run() {
    const absl::Status chain = CheckChain(graph_, "CPU devices");
    if (!chain.ok()) return chain;
    AddInput();
    for (int i = 0; i < graph_.node_count(); ++i) AddNode(i);
    CropUnread();
    MarkGradientsInPlace();
    return std::move(lowered_);
  }

 private:
  template <typename Op>
  bool ReadBy(int value) const {
    const std::vector<int>& readers = graph_.readers(value);
    return !readers.empty() && Is<Op>(graph_.nodes()[readers[0]]);
  }

  int NewTensor(int value) {
    Tensor tensor;
    tensor.elements = graph_.value_elements(value);
    tensor.gradient = graph_.needs_gradient(value);
    lowered_.tensors.push_back(tensor);
    return static_cast<int>(lowered_.tensors.size()) - 1;
  }

  View NewImageView(int value) {
    const Shape& shape = graph_.value_shape(value);
    View view;
    view.tensor = NewTensor(value);
    view.channels = shape[0];
    view.height = shape[1];
    view.width = shape[2];
    view.nhwc = view.height * view.width > 1;
    return view;
  }

  View NewFlatView(int value) {
    View view;
    view.tensor = NewTensor(value);
    view.channels = graph_.value_elements(value);
    return view;
  }

  void AddInput() {
    const Shape& shape = graph_.input_shape();
    // An image that is flattened at once stays as it came.
    const bool image = shape.size() == 3 && !ReadBy<training::Flatten>(0);
    views_[0] = image ? NewImageView(0) : NewFlatView(0);
    const View& view = views_[0];
    lowered_.input = {view.channels, view.height, view.width, view.height, view.width};
  }

  Stage& NewStage(StageKind kind, int node, int input, int output) {
    Stage stage;
    stage.kind = kind;
    stage.node = node;
    stage.name = graph_.nodes()[node].name;
    stage.input = input;
    stage.output = output;
    lowered_.stages.push_back(std::move(stage));
    return lowered_.stages.back();
  }

  void AddPool(int index, const training::Window& window, bool max) {
    const View x = views_[graph_.nodes()[index].inputs[0]];
    const View y = NewImageView(graph_.output_of(index));
    views_[graph_.output_of(index)] = y;
    Stage& stage = NewStage(StageKind::kPool, index, x.tensor, y.tensor);
    stage.pool = {max, fused_relu_, x.channels, x.height, x.width, y.height, y.width, window};
    fused_relu_ = false;
  }

  void AddLinear(int index, const View& x, const View& y, const training::Window& window,
                 bool dense) {
    Stage& stage = NewStage(StageKind::kLinear, index, x.tensor, y.tensor);
    LinearGeometry& g = stage.linear;
    g.dense = dense;
    g.in_channels = x.channels;
    g.in_h = x.height;
    g.in_w = x.width;
    g.out_channels = y.channels;
    g.out_h = y.height;
    g.out_w = y.width;
    g.window = window;
    g.bias = graph_.parameter_of(index, "bias") >= 0;
    g.data_gradient = graph_.needs_gradient(graph_.nodes()[index].inputs[0]);
  }

  void AddNode(int index) {
    const GraphNode& node = graph_.nodes()[index];
    const int output = graph_.output_of(index);
    const View x = views_[node.inputs[0]];
    if (const auto conv = training::As<training::Conv>(node.op)) {
      views_[output] = NewImageView(output);
      AddLinear(index, x, views_[output], conv->window, /*dense=*/false);
    } else if (const auto max_pool = training::As<training::MaxPool>(node.op)) {
      AddPool(index, max_pool->window, /*max=*/true);
    } else if (const auto average_pool = training::As<training::AveragePool>(node.op)) {
      AddPool(index, average_pool->window, /*max=*/false);
    } else if (Is<training::Gemm>(node)) {
      views_[output] = NewFlatView(output);
      AddLinear(index, x, views_[output], training::Window(), /*dense=*/true);
    } else if (Is<training::Relu>(node)) {
      views_[output] = x;
      if (ReadBy<training::MaxPool>(output) || ReadBy<training::AveragePool>(output)) {
        fused_relu_ = true;
      } else {
        NewStage(StageKind::kRelu, index, x.tensor, x.tensor);
      }
    } else if (Is<training::Flatten>(node)) {
      if (x.nhwc && x.channels > 1) {
        views_[output] = NewFlatView(output);
        Stage& stage = NewStage(StageKind::kPermute, index, x.tensor, views_[output].tensor);
        stage.permute = {x.channels, x.height * x.width};
      } else {
        views_[output] = View{x.tensor, graph_.value_elements(output), 1, 1, false};
      }
    } else {
      lowered_.classes = graph_.num_classes();
      NewStage(StageKind::kLoss, index, x.tensor, x.tensor);
    }
  }

  // Rows and columns at the end of an image that no window reads are not computed, from the last
  // pooling back to the input: lenet_d2l needs 8x8 of the 9x9 outputs of conv2, so 12x12 of its
  // inputs, and so on.
  void CropUnread() {
    std::vector<Stage> stages = lowered_.stages;
    std::vector<std::array<int64_t, 2>> read(
        lowered_.tensors.size());  // what the reader reads; 0: all
    for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
      const bool linear = stage->kind == StageKind::kLinear && !stage->linear.dense;
      if (!linear && stage->kind != StageKind::kPool) continue;
      training::Window& window = linear ? stage->linear.window : stage->pool.window;
      int64_t* const in[] = {linear ? &stage->linear.in_h : &stage->pool.in_h,
                             linear ? &stage->linear.in_w : &stage->pool.in_w};
      int64_t* const out[] = {linear ? &stage->linear.out_h : &stage->pool.out_h,
                              linear ? &stage->linear.out_w : &stage->pool.out_w};
      for (int axis = 0; axis < 2; ++axis) {
        if (read[stage->output][axis] > 0) *out[axis] = read[stage->output][axis];
        const int64_t end = (*out[axis] - 1) * window.strides[axis] +
                            window.dilations[axis] * (window.kernel_shape[axis] - 1) + 1 -
                            window.pads[axis];
        if (end < 1) return;  // reads padding alone: not worth a rule
        *in[axis] = std::min(*in[axis], end);
        window.pads[axis + 2] = end - *in[axis];
        read[stage->input][axis] = *in[axis];
      }
    }
    lowered_.stages = std::move(stages);
    for (const Stage& stage : lowered_.stages) {
      if (stage.kind == StageKind::kPool) {
        const PoolGeometry& g = stage.pool;
        lowered_.tensors[stage.input].elements = g.channels * g.in_h * g.in_w;
      } else if (stage.kind == StageKind::kLinear) {
        const LinearGeometry& g = stage.linear;
        lowered_.tensors[stage.input].elements = g.in_channels * g.in_h * g.in_w;
      }
    }
    if (read[0][0] > 0) {
      lowered_.input.height = read[0][0];
      lowered_.input.width = read[0][1];
    }
  }

  // The 2x2 pooling and the loss read each value before they write the gradient to its place. Not
  // where a Relu made the value in place: its backward reads the value once more.
  void MarkGradientsInPlace() {
    std::vector<bool> relu(lowered_.tensors.size(), false);
    for (const Stage& stage : lowered_.stages) {
      if (stage.kind == StageKind::kRelu) relu[stage.input] = true;
    }
    for (const Stage& stage : lowered_.stages) {
      const bool in_place = stage.kind == StageKind::kLoss ||
                            (stage.kind == StageKind::kPool && stage.pool.two_by_two());
      if (in_place && !relu[stage.input]) lowered_.tensors[stage.input].gradient_in_place = true;
    }
  }

  const Graph& graph_;
  std::vector<View> views_;  // by value
  bool fused_relu_ = false;  // the next pooling takes the Relu before it
  Lowered lowered_;
};

}  // namespace

absl::StatusOr<Lowered> Lower(const Graph& graph) { return Lowering(graph).Run(); }

}  // namespace capstan::engine
