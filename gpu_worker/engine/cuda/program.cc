#include "gpu_worker/engine/cuda/program.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gpu_worker/engine/cuda/chain.h"

namespace capstan::engine::cuda {
namespace {

constexpr int64_t kMaxElements = std::numeric_limits<int32_t>::max();

int64_t RoundUp(int64_t bytes) { return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }

int64_t Elements(const int64_t (&shape)[3]) { return shape[0] * shape[1] * shape[2]; }

// The current value of the chain.
struct View {
  int tensor = 0;
  int64_t shape[3] = {1, 1, 1};
  bool channels_last = false;  // and more than one channel and one pixel
};

bool OrderMatters(const int64_t (&shape)[3]) { return shape[0] > 1 && shape[1] * shape[2] > 1; }

class Builder {
 public:
  Builder(std::vector<ChainOp> ops, const capstan_compile_request& request)
      : ops_(std::move(ops)), request_(request) {}

  absl::StatusOr<CardProgram> Run() {
    if (request_.max_batch < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("max_batch: ", request_.max_batch, ", want 1 or more"));
    }
    const absl::Status sizes = CheckSizes();
    if (!sizes.ok()) return sizes;
    program_.total_floats = request_.total_floats;
    AddInput();
    for (int i = 0; i < Count(); ++i) AddOp(i);
    return std::move(program_);
  }

 private:
  int Count() const { return static_cast<int>(ops_.size()); }
  const ChainOp& Op(int i) const { return ops_[i]; }
  bool IsPool(int i) const {
    return i < Count() &&
           (Op(i).kind == ChainOpKind::kMaxPool || Op(i).kind == ChainOpKind::kAveragePool);
  }
  bool IsRelu(int i) const { return i < Count() && Op(i).kind == ChainOpKind::kRelu; }

  absl::Status CheckSizes() const {
    for (const ChainOp& op : ops_) {
      int64_t weight = 1;
      if (op.kind == ChainOpKind::kConv) {
        weight = op.y[0] * op.x[0] * op.kernel[0] * op.kernel[1];
      } else if (op.kind == ChainOpKind::kGemm) {
        weight = op.y[0] * Elements(op.x);
      }
      for (const int64_t elements :
           {Elements(op.x) * request_.max_batch, Elements(op.y) * request_.max_batch, weight}) {
        if (elements < 1 || elements > kMaxElements) {
          return absl::InvalidArgumentError(
              absl::StrCat("node ", op.name, ": a tensor of ", elements, " elements at max_batch ",
                           request_.max_batch, ", want 1 to ", kMaxElements));
        }
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
    program_.tensors.push_back({elements, gradient});
    return static_cast<int>(program_.tensors.size()) - 1;
  }

  void SetShape(const int64_t (&shape)[3]) { std::copy(shape, shape + 3, view_.shape); }

  void AddInput() {
    const ChainOp& first = Op(0);
    SetShape(first.x);
    view_.tensor = NewTensor(Elements(first.x), first.input_gradient);
    // An image that is flattened at once keeps its order.
    view_.channels_last = OrderMatters(first.x) && first.kind != ChainOpKind::kFlatten;
    program_.image_channels = static_cast<int32_t>(first.x[0]);
    program_.image_pixels = static_cast<int32_t>(first.x[1] * first.x[2]);
    program_.input_nhwc = view_.channels_last;
  }

  bool OutputGradient(int i) const { return i + 1 < Count() && Op(i + 1).input_gradient; }

  Stage& NewStage(StageKind kind, const ChainOp& op, int y) {
    Stage stage;
    stage.kind = kind;
    stage.name = op.name;
    stage.x = view_.tensor;
    stage.y = y;
    stage.input_gradient = op.input_gradient;
    program_.stages.push_back(std::move(stage));
    return program_.stages.back();
  }

  void SetWindow(const ChainOp& op, WindowGeometry& g) {
    const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
    g.in_c = narrow(op.x[0]), g.in_h = narrow(op.x[1]), g.in_w = narrow(op.x[2]);
    g.out_c = narrow(op.y[0]), g.out_h = narrow(op.y[1]), g.out_w = narrow(op.y[2]);
    g.kernel_h = narrow(op.kernel[0]), g.kernel_w = narrow(op.kernel[1]);
    g.stride_h = narrow(op.strides[0]), g.stride_w = narrow(op.strides[1]);
    g.pad_top = narrow(op.pads[0]), g.pad_left = narrow(op.pads[1]);
    g.pad_bottom = narrow(op.pads[2]), g.pad_right = narrow(op.pads[3]);
    g.dilation_h = narrow(op.dilations[0]), g.dilation_w = narrow(op.dilations[1]);
  }

  void AddPool(int i) {
    const ChainOp& op = Op(i);
    const int y = NewTensor(Elements(op.y), OutputGradient(i));
    Stage& stage = NewStage(
        op.kind == ChainOpKind::kMaxPool ? StageKind::kMaxPool : StageKind::kAveragePool, op, y);
    SetWindow(op, stage.window);
    stage.relu = relu_waits_;
    relu_waits_ = false;
    view_.tensor = y;
    SetShape(op.y);
    view_.channels_last = OrderMatters(op.y);
  }

  // Convolution or dense layer, with the next Relu unless a pooling takes that.
  void AddLinear(int i, bool dense) {
    const ChainOp& op = Op(i);
    const bool relu = IsRelu(i + 1) && !IsPool(i + 2);
    const int y = NewTensor(Elements(op.y), OutputGradient(i));
    Stage& stage = NewStage(dense ? StageKind::kDense : StageKind::kConv, op, y);
    stage.relu = relu;
    stage.weight = op.weight_offset;
    stage.bias = op.bias_offset;
    stage.weight_rows = static_cast<int32_t>(op.y[0]);
    if (dense) {
      stage.window.in_c = static_cast<int32_t>(Elements(op.x));
      stage.window.out_c = static_cast<int32_t>(op.y[0]);
      stage.weight_channels = stage.window.in_c;
      if (view_.channels_last) {
        stage.weight_channels = static_cast<int32_t>(view_.shape[0]);
        stage.weight_pixels = static_cast<int32_t>(view_.shape[1] * view_.shape[2]);
      }
    } else {
      SetWindow(op, stage.window);
      stage.weight_channels = stage.window.in_c;
      stage.weight_pixels = stage.window.kernel_h * stage.window.kernel_w;
    }
    const bool half = request_.precision == CAPSTAN_PRECISION_BF16 ||
                      request_.precision == CAPSTAN_PRECISION_FP16;
    if (stage.permuted() || half) stage.copy = NewCopy(stage.weight_elements());
    if (stage.bias >= 0 && half) stage.bias_copy = NewCopy(stage.weight_rows);
    stage.rounded_gradient = half && !dense;
    if (stage.permuted() || stage.rounded_gradient) {
      program_.largest_gradient = std::max(program_.largest_gradient, stage.weight_elements());
    }
    if (stage.bias >= 0) program_.widest_bias = std::max(program_.widest_bias, stage.weight_rows);
    view_.tensor = y;
    SetShape(op.y);
    view_.channels_last = OrderMatters(op.y);
    relu_done_ = relu;
  }

  void AddRelu(int i) {
    if (relu_done_) {
      relu_done_ = false;
    } else if (IsPool(i + 1)) {
      relu_waits_ = true;
    } else {
      NewStage(StageKind::kRelu, Op(i), view_.tensor);
    }
  }

  void AddLoss(int i) {
    const ChainOp& op = Op(i);
    if (view_.channels_last) {
      const int y = NewTensor(Elements(op.x), op.input_gradient);
      Stage& stage = NewStage(StageKind::kPermute, op, y);
      stage.window.in_c = static_cast<int32_t>(view_.shape[0]);
      stage.window.in_h = static_cast<int32_t>(view_.shape[1]);
      stage.window.in_w = static_cast<int32_t>(view_.shape[2]);
      view_.tensor = y;
    }
    program_.classes = static_cast<int32_t>(Elements(op.x));
    NewStage(StageKind::kLoss, op, view_.tensor);
  }

  void AddOp(int i) {
    switch (Op(i).kind) {
      case ChainOpKind::kConv:
        AddLinear(i, /*dense=*/false);
        break;
      case ChainOpKind::kGemm:
        AddLinear(i, /*dense=*/true);
        break;
      case ChainOpKind::kMaxPool:
      case ChainOpKind::kAveragePool:
        AddPool(i);
        break;
      case ChainOpKind::kRelu:
        AddRelu(i);
        break;
      case ChainOpKind::kFlatten:
        break;  // the view keeps the image's shape, which gives the order of the features
      case ChainOpKind::kLoss:
        AddLoss(i);
        break;
    }
  }

  const std::vector<ChainOp> ops_;
  const capstan_compile_request& request_;
  CardProgram program_;
  View view_;
  bool relu_done_ = false;   // the previous stage includes the next Relu
  bool relu_waits_ = false;  // the next pooling includes the Relu before it
};

std::string Size(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1024 ? absl::StrFormat("%.1f MiB", mib) : absl::StrFormat("%.2f GiB", mib / 1024);
}

// The time at which gradients by the parameters of stage s are complete.
int ParametersDone(const CardProgram& program, int s) {
  const int last = static_cast<int>(program.stages.size()) - 1;
  int further = 0;
  for (int t = s - 1; t >= 0; --t) {
    const StageKind kind = program.stages[t].kind;
    if (kind != StageKind::kConv && kind != StageKind::kDense) continue;
    if (++further == kParameterLag) return 2 * last - t;
  }
  return 2 * last;
}

}  // namespace

absl::StatusOr<CardProgram> MakeCardProgram(const capstan_compile_request& request) {
  const absl::StatusOr<ReceivedGraph> received = ReceiveGraph(request);
  if (!received.ok()) return received.status();
  const absl::Status chain = CheckChain(received->graph, "GPU devices");
  if (!chain.ok()) return chain;
  return Builder(ChainOf(*received), request).Run();
}

int64_t PlaceBuffers(std::vector<CardBuffer>& buffers) {
  std::vector<CardBuffer*> order;
  for (CardBuffer& buffer : buffers) order.push_back(&buffer);
  std::stable_sort(order.begin(), order.end(),
                   [](const CardBuffer* a, const CardBuffer* b) { return a->bytes > b->bytes; });
  std::vector<const CardBuffer*> placed;  // by offset
  int64_t total = 0;
  for (CardBuffer* const buffer : order) {
    const int64_t bytes = RoundUp(buffer->bytes);
    int64_t offset = 0;
    for (const CardBuffer* const other : placed) {
      if (other->last < buffer->first || other->first > buffer->last) continue;
      if (offset + bytes <= other->offset) break;
      offset = std::max(offset, other->offset + RoundUp(other->bytes));
    }
    buffer->offset = offset;
    total = std::max(total, offset + bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), buffer,
                                   [](const CardBuffer* a, const CardBuffer* b) {
                                     return a->offset < b->offset;
                                   }),
                  buffer);
  }
  return total;
}

// Time runs forward over the stages, 0 to last, and back. Stage s runs again at 2 * last - s.
MemoryPlan PlanMemory(const CardProgram& program, const MemoryOptions& options) {
  const int last = static_cast<int>(program.stages.size()) - 1;
  const int tensor_count = static_cast<int>(program.tensors.size());
  std::vector<CardBuffer> values(tensor_count, {0, 2 * last, 0, 0}), gradients = values;
  const auto live = [](CardBuffer& buffer, int time) {
    buffer.first = std::min(buffer.first, time);
    buffer.last = std::max(buffer.last, time);
  };
  values[0].first = 0;
  for (int s = 0; s <= last; ++s) {
    const Stage& stage = program.stages[s];
    const int backward = 2 * last - s;
    live(values[stage.x], s);
    live(values[stage.y], s);
    live(gradients[stage.y], backward);
    if (stage.input_gradient) live(gradients[stage.x], backward);
    const bool linear = stage.kind == StageKind::kConv || stage.kind == StageKind::kDense;
    const bool reads_x =
        linear || (stage.input_gradient &&
                   (stage.kind == StageKind::kMaxPool || stage.kind == StageKind::kAveragePool ||
                    stage.kind == StageKind::kRelu));
    if (reads_x) live(values[stage.x], backward);
    if (linear && stage.relu) live(values[stage.y], backward);
    if (linear) {
      const int lag = ParametersDone(program, s);
      live(values[stage.x], lag);
      live(gradients[stage.y], lag);
    }
  }

  std::vector<CardBuffer> all;
  for (int t = 0; t < tensor_count; ++t) {
    const int64_t bytes = program.tensors[t].elements * options.max_batch * options.element_bytes;
    values[t].bytes = bytes;
    gradients[t].bytes = program.tensors[t].gradient ? bytes : 0;
    all.push_back(values[t]);
    all.push_back(gradients[t]);
  }
  MemoryPlan plan;
  int64_t end = PlaceBuffers(all);
  for (int t = 0; t < tensor_count; ++t) {
    plan.values.push_back(all[2 * t].offset);
    plan.gradients.push_back(program.tensors[t].gradient ? all[2 * t + 1].offset : -1);
  }
  const auto take = [&end](int64_t bytes) {
    const int64_t offset = end;
    end += RoundUp(bytes);
    return offset;
  };
  const int64_t n = options.max_batch, flat = options.flat_bytes;
  plan.header = take(static_cast<int64_t>(sizeof(BatchHeader)) + n * 4);
  plan.images = take(program.tensors[0].elements * n * static_cast<int64_t>(sizeof(float)));
  plan.row_loss = take(n * 8);
  plan.row_correct = take(n * 4);
  plan.parts = take(int64_t{kSumParts} * program.widest_bias * flat);
  plan.stage_gradient = take(program.largest_gradient * flat);
  plan.workspace = take(options.workspace_bytes);
  plan.parameter_workspace = take(options.workspace_bytes);
  plan.arena_bytes = end;
  plan.weights = take(program.total_floats * flat);
  plan.copies = take(program.copied_elements * options.element_bytes);
  plan.weight_bytes = end - plan.arena_bytes;
  plan.gradient = take(program.total_floats * flat);
  plan.gradient_bytes = end - plan.arena_bytes - plan.weight_bytes;
  return plan;
}

int64_t LargestBatchWithin(const CardProgram& program, MemoryOptions options, int64_t bytes) {
  int64_t fits = 0, too_many = options.max_batch + 1;
  while (too_many - fits > 1) {
    options.max_batch = fits + (too_many - fits) / 2;
    (PlanMemory(program, options).total_bytes() <= bytes ? fits : too_many) = options.max_batch;
  }
  return fits;
}

std::string OutOfMemoryText(const CardProgram& program, const MemoryOptions& options,
                            int64_t free_bytes, int64_t whole_bytes) {
  const int64_t fits = LargestBatchWithin(program, options, free_bytes);
  return absl::StrCat(
      "out of GPU memory: a plan for ", options.max_batch, " samples needs ",
      Size(PlanMemory(program, options).total_bytes()), ", ", Size(free_bytes), " of ",
      Size(whole_bytes), " are free; ",
      fits > 0
          ? absl::StrCat("up to ", fits,
                         " samples would fit: use a smaller batch, more lanes or more GPUs")
          : std::string("not even one sample would fit: free the card or use a smaller model"));
}

}  // namespace capstan::engine::cuda
