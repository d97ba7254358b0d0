#include "gpu_worker/engine/cuda/program.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/cuda/carried_out.h"
#include "gpu_worker/engine/plan/program.h"
#include "gpu_worker/engine/plugin/sent_graph.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/conv/conv.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/global_average_pool/global_average_pool.h"
#include "training/ops/global_max_pool/global_max_pool.h"
#include "training/ops/layer_normalization/layer_normalization.h"
#include "training/ops/linear/linear.h"
#include "training/ops/mat_mul/mat_mul.h"
#include "training/ops/pool/pool.h"
#include "training/ops/reduce/reduce.h"
#include "training/ops/relu/relu.h"
#include "training/ops/transpose/transpose.h"

namespace capstan::engine::cuda {
namespace {

using training::Graph;
using training::Shape;

constexpr int64_t kMaxElements = std::numeric_limits<int32_t>::max();

// How the numbers of a value lie.
struct View {
  int tensor = 0;
  // An image, or the image whose numbers a flat value has. Every other value: its elements, 1, 1.
  int64_t shape[3] = {1, 1, 1};
  bool channels_last = false;  // and more than one channel and one pixel

  int64_t elements() const { return shape[0] * shape[1] * shape[2]; }
  bool order_matters() const { return shape[0] > 1 && shape[1] * shape[2] > 1; }
};

View ViewOf(const Shape& shape) {
  View view;
  view.shape[0] = shape.size() == 3 ? shape[0] : training::Elements(shape);
  if (shape.size() == 3) view.shape[1] = shape[1], view.shape[2] = shape[2];
  return view;
}

int32_t Narrow(int64_t value) { return static_cast<int32_t>(value); }

void SetWindow(const training::Window& from, WindowGeometry& g) {
  g.kernel_h = Narrow(from.kernel_shape[0]), g.kernel_w = Narrow(from.kernel_shape[1]);
  g.stride_h = Narrow(from.strides[0]), g.stride_w = Narrow(from.strides[1]);
  g.pad_top = Narrow(from.pads[0]), g.pad_left = Narrow(from.pads[1]);
  g.pad_bottom = Narrow(from.pads[2]), g.pad_right = Narrow(from.pads[3]);
  g.dilation_h = Narrow(from.dilations[0]), g.dilation_w = Narrow(from.dilations[1]);
}

class Builder {
 public:
  Builder(const ReceivedGraph& received, const capstan_compile_request& request)
      : graph_(received.graph),
        offsets_(received.offsets),
        request_(request),
        views_(received.graph.value_count()) {}

  absl::StatusOr<CardProgram> Run() {
    if (request_.max_batch < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("max_batch: ", request_.max_batch, ", want 1 or more"));
    }
    const absl::Status sizes = CheckSizes();
    if (!sizes.ok()) return sizes;
    program_.total_floats = request_.total_floats;
    AddInput();
    for (const ProgramStep& step : MakeProgram(graph_, CardPatterns(), CardReadsParameter).steps) {
      AddStep(step);
    }
    PlanGradients();
    return std::move(program_);
  }

 private:
  const std::string& OpOf(int node) const { return graph_.nodes()[node].op.name; }
  const training::Attributes& AttributesOf(int node) const {
    return graph_.nodes()[node].op.attributes;
  }

  absl::Status CheckSizes() const {
    for (int i = 0; i < graph_.node_count(); ++i) {
      std::vector<int64_t> sizes = {graph_.value_elements(i + 1) * request_.max_batch};
      for (const int input : graph_.nodes()[i].inputs) {
        sizes.push_back(graph_.value_elements(input) * request_.max_batch);
      }
      for (const int parameter : graph_.parameters_of(i)) {
        sizes.push_back(graph_.parameters()[parameter].elements);
      }
      for (const int64_t elements : sizes) {
        if (elements >= 1 && elements <= kMaxElements) continue;
        return absl::InvalidArgumentError(absl::StrCat(
            "node ", graph_.nodes()[i].name, ": a tensor of ", elements, " elements at max_batch ",
            request_.max_batch, ", want 1 to ", kMaxElements));
      }
    }
    return absl::OkStatus();
  }

  // Places are aligned for the libraries' 16-byte accesses.
  int64_t NewCopy(int64_t elements) {
    const int64_t place = program_.copied_elements;
    program_.copied_elements += (elements + 63) / 64 * 64;
    return place;
  }

  int NewTensor(int64_t elements, bool gradient) {
    program_.tensors.push_back({elements, gradient, false});
    return static_cast<int>(program_.tensors.size()) - 1;
  }

  void AddInput() {
    View view = ViewOf(graph_.input_shape());
    view.tensor = NewTensor(view.elements(), false);
    program_.tensors[view.tensor].wide = IsOnlyTokens(graph_, 0);
    // An image that is flattened at once keeps its order.
    const std::string& first = OpOf(graph_.readers(0).front());
    const CardForm form = *FindCardForm(first);
    view.channels_last = view.order_matters() && first != training::Linear::kName &&
                         (form == CardForm::kLibrary || form == CardForm::kElements ||
                          first == training::BatchNormalization::kName);
    program_.image_channels = Narrow(view.shape[0]);
    program_.image_pixels = Narrow(view.shape[1] * view.shape[2]);
    program_.input_nhwc = view.channels_last;
    views_[0] = view;
  }

  Stage& NewStage(StageKind kind, int node, int x, int y) {
    Stage stage;
    stage.kind = kind;
    stage.name = graph_.nodes()[node].name;
    stage.x = x;
    stage.y = y;
    stage.node = node;
    program_.stages.push_back(std::move(stage));
    return program_.stages.back();
  }

  // The output of `node` as a new tensor.
  View& NewOutput(int node, bool channels_last) {
    const int value = graph_.output_of(node);
    View& view = views_[value] = ViewOf(graph_.value_shape(value));
    view.tensor = NewTensor(view.elements(), graph_.needs_gradient(value));
    view.channels_last = channels_last && view.order_matters();
    return view;
  }

  // `value` for `node`, in the wanted order. Each tensor is turned once.
  View InOrder(int value, bool channels_last, int node) {
    View view = views_[value];
    if (!view.order_matters() || view.channels_last == channels_last) return view;
    const auto [turned, added] =
        turned_.try_emplace({view.tensor, view.shape[0], view.shape[1] * view.shape[2]}, -1);
    if (added) {
      const Tensor from = program_.tensors[view.tensor];
      turned->second = NewTensor(from.elements, from.gradient);
      program_.tensors[turned->second].wide = from.wide;
      Stage& stage = NewStage(StageKind::kPermute, node, view.tensor, turned->second);
      stage.to_channels_last = channels_last;
      stage.input_gradient = from.gradient;
      SetInput(view, stage.window);
    }
    view.tensor = turned->second;
    view.channels_last = channels_last;
    return view;
  }

  static void SetInput(const View& view, WindowGeometry& g) {
    g.in_c = Narrow(view.shape[0]), g.in_h = Narrow(view.shape[1]), g.in_w = Narrow(view.shape[2]);
  }
  static void SetOutput(const View& view, WindowGeometry& g) {
    g.out_c = Narrow(view.shape[0]);
    g.out_h = Narrow(view.shape[1]), g.out_w = Narrow(view.shape[2]);
  }

  void AddPool(const ProgramStep& step, bool max) {
    const int node = step.last;
    const View x = InOrder(step.inputs[0], /*channels_last=*/true, node);
    const View y = NewOutput(node, true);
    Stage& stage =
        NewStage(max ? StageKind::kMaxPool : StageKind::kAveragePool, node, x.tensor, y.tensor);
    stage.input_gradient = graph_.needs_gradient(step.inputs[0]);
    stage.relu = step.first < step.last;
    WindowGeometry& g = stage.window;
    SetInput(x, g);
    SetOutput(y, g);
    if (AttributesOf(node).Has("kernel_shape")) {
      SetWindow(training::ReadWindow(AttributesOf(node)), g);
      g.count_pads = !max && training::AveragePool::Read(AttributesOf(node)).count_include_pad;
    } else {  // over the whole image
      g.kernel_h = g.stride_h = g.in_h, g.kernel_w = g.stride_w = g.in_w;
    }
  }

  int64_t OffsetOf(int node, const char* suffix) const {
    const int parameter = graph_.parameter_of(node, suffix);
    return parameter < 0 ? -1 : offsets_[parameter];
  }

  // Weights, bias, and their copies.
  void SetParameters(int node, Stage& stage) {
    stage.weight = OffsetOf(node, "weight");
    stage.bias = OffsetOf(node, "bias");
    const bool half = request_.precision == CAPSTAN_PRECISION_BF16 ||
                      request_.precision == CAPSTAN_PRECISION_FP16;
    if (stage.permuted() || half) stage.copy = NewCopy(stage.weight_elements());
    if (stage.bias >= 0 && half) stage.bias_copy = NewCopy(stage.weight_rows);
    stage.rounded_gradient = half && stage.kind == StageKind::kConv;
    if (stage.permuted() || stage.rounded_gradient) {
      program_.largest_gradient = std::max(program_.largest_gradient, stage.weight_elements());
    }
    if (stage.bias >= 0) program_.widest_bias = std::max(program_.widest_bias, stage.weight_rows);
  }

  void AddConv(const ProgramStep& step) {
    const int node = step.first;
    const View x = InOrder(step.inputs[0], /*channels_last=*/true, node);
    const View y = NewOutput(step.last, true);
    Stage& stage = NewStage(StageKind::kConv, node, x.tensor, y.tensor);
    stage.input_gradient = graph_.needs_gradient(step.inputs[0]);
    stage.relu = step.first < step.last;
    const training::Conv conv = training::Conv::Read(AttributesOf(node));
    SetWindow(conv.window, stage.window);
    SetInput(x, stage.window);
    SetOutput(y, stage.window);
    stage.window.groups = Narrow(conv.group);
    stage.weight_rows = stage.window.out_c;
    stage.weight_channels = stage.window.in_c / stage.window.groups;
    stage.weight_pixels = stage.window.kernel_h * stage.window.kernel_w;
    SetParameters(node, stage);
  }

  // Gemm takes a flattened image as it lies, Linear vectors of `features`.
  void AddDense(const ProgramStep& step, bool gemm) {
    const int node = step.first;
    const View x =
        gemm ? views_[step.inputs[0]] : InOrder(step.inputs[0], /*channels_last=*/false, node);
    const int64_t features = gemm ? x.elements() : graph_.value_shape(step.inputs[0]).back();
    const View y = NewOutput(step.last, false);
    Stage& stage = NewStage(StageKind::kDense, node, x.tensor, y.tensor);
    stage.input_gradient = graph_.needs_gradient(step.inputs[0]);
    stage.relu = step.first < step.last;
    stage.rows = Narrow(x.elements() / features);
    stage.window.in_c = Narrow(features);
    stage.window.out_c = Narrow(graph_.value_shape(graph_.output_of(node)).back());
    stage.weight_rows = stage.window.out_c;
    stage.weight_channels = stage.window.in_c;
    if (gemm && x.channels_last) {
      stage.weight_channels = Narrow(x.shape[0]);
      stage.weight_pixels = Narrow(x.shape[1] * x.shape[2]);
    }
    SetParameters(node, stage);
  }

  // Whether a Relu may write over `value`: no other stage reads it, now or later. A backward that
  // reads what it made must not find it changed, except where it only asks for the sign.
  bool MayOverwrite(int value) const {
    while (true) {
      if (graph_.readers(value).size() != 1) return false;
      if (value == 0 || graph_.def(value - 1).in_place != training::InPlace::kView) break;
      value = graph_.nodes()[value - 1].inputs[0];
    }
    return value == 0 || !graph_.def(value - 1).reads.y || OpOf(value - 1) == training::Relu::kName;
  }

  void AddRelu(const ProgramStep& step) {
    const int input = step.inputs[0];
    if (!MayOverwrite(input)) return AddOperator(step);
    const View view = views_[graph_.output_of(step.first)] = views_[input];
    NewStage(StageKind::kRelu, step.first, view.tensor, view.tensor).input_gradient =
        graph_.needs_gradient(input);
  }

  // Reshape and the like need the canonical order, except where a dense layer takes the image.
  void AddView(const ProgramStep& step) {
    const int input = step.inputs[0], output = step.output;
    const std::vector<int>& readers = graph_.readers(output);
    const bool to_dense = std::all_of(readers.begin(), readers.end(), [this](int node) {
      return OpOf(node) == training::Gemm::kName || OpOf(node) == training::Relu::kName ||
             graph_.def(node).loss;
    });
    View view = views_[input];
    if (!to_dense || graph_.value_shape(output).size() != 1) {
      const int tensor = InOrder(input, /*channels_last=*/false, step.first).tensor;
      view = ViewOf(graph_.value_shape(output));
      view.tensor = tensor;
    }
    views_[output] = view;
  }

  void AddLoss(const ProgramStep& step) {
    const View x = InOrder(step.inputs[0], /*channels_last=*/false, step.first);
    program_.classes = Narrow(graph_.num_classes());
    StageInput tokens;
    if (step.inputs.size() > 1) {
      tokens.tensor = InOrder(step.inputs[1], /*channels_last=*/false, step.first).tensor;
    }
    Stage& stage = NewStage(StageKind::kLoss, step.first, x.tensor, x.tensor);
    stage.rows = Narrow(x.elements() / program_.classes);
    stage.input_gradient = graph_.needs_gradient(step.inputs[0]);
    if (step.inputs.size() > 1) {
      tokens.gradient = graph_.needs_gradient(step.inputs[1]);
      stage.inputs.push_back(tokens);
    } else if (graph_.target_size() > 0) {
      stage.squared_error = true;
    } else {
      stage.label_smoothing = static_cast<float>(AttributesOf(step.first).Float("label_smoothing"));
    }
  }

  // The order in which an operator's output lies.
  bool OutputChannelsLast(CardForm form, const ProgramStep& step,
                          const std::vector<View>& x) const {
    const std::string& op = OpOf(step.first);
    if (form != CardForm::kStrides || x.empty() || op == training::Transpose::kName ||
        op == training::MatMul::kName || op == training::ReduceMean::kName ||
        op == training::ReduceSum::kName) {
      return false;
    }
    return std::any_of(x.begin(), x.end(), [](const View& view) { return view.channels_last; });
  }

  void AddOperator(const ProgramStep& step) {
    const int node = step.first;
    const CardForm form = *FindCardForm(OpOf(node));
    std::vector<StageInput> inputs;
    std::vector<View> views;
    std::vector<int64_t> parameters;
    for (size_t k = 0; k < step.inputs.size(); ++k) {
      StageInput& input = inputs.emplace_back();
      if (step.parameters[k] >= 0) {
        parameters.push_back(OffsetOf(step.parameters[k], "weight"));
        continue;
      }
      const int value = step.inputs[k];
      const bool as_it_lies = form == CardForm::kElements ||
                              (form == CardForm::kStrides && graph_.value_shape(value).size() == 3);
      // What is added to a normalisation lies as its input does.
      const bool added = step.first < step.last && k > 0;
      const View view = added        ? InOrder(value, views[0].channels_last, node)
                        : as_it_lies ? views_[value]
                                     : InOrder(value, /*channels_last=*/false, node);
      input.read = !added;
      views.push_back(view);
      input.tensor = view.tensor;
      input.channels_last = view.channels_last;
      input.gradient = graph_.needs_gradient(value);
    }
    for (const int parameter : graph_.parameters_of(node)) {
      parameters.push_back(offsets_[parameter]);
    }
    View& y = NewOutput(step.last, OutputChannelsLast(form, step, views));
    if (form == CardForm::kElements) {
      const int tensor = y.tensor;
      y = views[0];
      y.tensor = tensor;
    }
    Stage& stage = NewStage(StageKind::kOperator, node, y.tensor, y.tensor);
    stage.channels_last = y.channels_last;
    if (!views.empty()) {
      stage.x = views[0].tensor;
      SetInput(views[0], stage.window);
    }
    stage.inputs = std::move(inputs);
    stage.parameters = std::move(parameters);
    stage.backward = step.backward;
    stage.reads_x = step.backward && graph_.def(node).reads.x;
    stage.relu = step.first < step.last;
    stage.reads_y = step.backward && (stage.relu || graph_.def(node).reads.y);
    SetOperatorMemory(node, stage);
    program_.draws = program_.draws || graph_.def(node).random;
  }

  // What the kernels of ops/norm_kernels.h leave for backward and need besides.
  void SetOperatorMemory(int node, Stage& stage) const {
    const Shape& shape = graph_.value_shape(graph_.output_of(node));
    if (OpOf(node) == training::BatchNormalization::kName) {
      stage.saved.assign(3, {0, shape[0]});  // mean, scale, unbiased variance
      stage.scratch_floats = 2 * int64_t{kSumParts} * shape[0];
    } else if (OpOf(node) == training::LayerNormalization::kName) {
      const int64_t size = graph_.parameters()[graph_.parameters_of(node)[0]].elements;
      stage.saved.assign(2, {training::Elements(shape) / size, 0});  // mean, scale
      stage.scratch_floats = 2 * int64_t{kSumParts} * size;
    }
  }

  void AddStep(const ProgramStep& step) {
    const std::string& op = OpOf(step.first);
    const std::string& last = OpOf(step.last);
    if (op == training::Conv::kName) {
      AddConv(step);
    } else if (op == training::Gemm::kName || op == training::Linear::kName) {
      AddDense(step, op == training::Gemm::kName);
    } else if (last == training::MaxPool::kName || last == training::GlobalMaxPool::kName) {
      AddPool(step, /*max=*/true);
    } else if (last == training::AveragePool::kName || last == training::GlobalAveragePool::kName) {
      AddPool(step, /*max=*/false);
    } else if (op == training::Relu::kName) {
      AddRelu(step);
    } else if (graph_.def(step.first).loss) {
      AddLoss(step);
    } else if (*FindCardForm(op) == CardForm::kView) {
      AddView(step);
    } else {
      AddOperator(step);
    }
  }

  // Backward runs the stages in falling order: the first that gives a gradient by a tensor stores
  // it, and the others add.
  void PlanGradients() {
    std::vector<bool> stored(program_.tensors.size(), false);
    for (int s = static_cast<int>(program_.stages.size()) - 1; s >= 0; --s) {
      Stage& stage = program_.stages[s];
      for (StageInput& input : stage.inputs) {
        if (input.gradient) {
          input.add = stored[input.tensor];
          stored[input.tensor] = true;
        }
      }
      if (stage.kind == StageKind::kOperator || stage.kind == StageKind::kRelu) continue;
      if (!stage.input_gradient) continue;
      stage.add_gradient = stored[stage.x];
      stored[stage.x] = true;
    }
  }

  const Graph& graph_;
  const std::vector<int64_t>& offsets_;
  const capstan_compile_request& request_;
  CardProgram program_;
  std::vector<View> views_;                       // by value
  std::map<std::array<int64_t, 3>, int> turned_;  // by tensor, channels and pixels
};

}  // namespace

absl::StatusOr<CardProgram> MakeCardProgram(const capstan_compile_request& request) {
  absl::StatusOr<ReceivedGraph> received = ReceiveGraph(request);
  if (!received.ok()) return received.status();
  const absl::Status carried = CheckCarriedOut(received->graph, request.precision, "GPU devices");
  if (!carried.ok()) return carried;
  absl::StatusOr<CardProgram> program = Builder(*received, request).Run();
  if (program.ok()) {
    program->graph = std::make_shared<const Graph>(std::move(received->graph));
  }
  return program;
}

}  // namespace capstan::engine::cuda
