// Where everything of a plan lies in its one piece of memory.
#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gpu_worker/engine/cuda/program.h"

namespace capstan::engine::cuda {
namespace {

int64_t RoundUp(int64_t bytes) { return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }

std::string Size(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1024 ? absl::StrFormat("%.1f MiB", mib) : absl::StrFormat("%.2f GiB", mib / 1024);
}

// The time at which gradients by the parameters of stage s are complete.
int ParametersDone(const CardProgram& program, int s) {
  const int last = static_cast<int>(program.stages.size()) - 1;
  int further = 0;
  for (int t = s - 1; t >= 0; --t) {
    if (!program.stages[t].linear()) continue;
    if (++further == kParameterLag) return 2 * last - t;
  }
  return 2 * last;
}

// When each buffer of a plan is needed. Time runs forward over the stages, 0 to last, and back.
// Stage s runs again at 2 * last - s.
class Lives {
 public:
  Lives(const CardProgram& program, const MemoryOptions& options)
      : program_(program),
        options_(options),
        last_(static_cast<int>(program.stages.size()) - 1),
        values_(program.tensors.size(), {0, 2 * last_, 0, 0}),
        gradients_(values_) {
    values_[0].first = 0;
    for (int s = 0; s <= last_; ++s) AddStage(s);
  }

  // Fills in the places of values, gradients and what is saved, and returns their bytes.
  int64_t Place(MemoryPlan& plan) {
    std::vector<CardBuffer> all;
    for (size_t t = 0; t < values_.size(); ++t) {
      const Tensor& tensor = program_.tensors[t];
      const int64_t elements = tensor.elements * options_.max_batch;
      values_[t].bytes = elements * (tensor.wide ? 4 : options_.element_bytes);
      gradients_[t].bytes = tensor.gradient ? elements * options_.element_bytes : 0;
      all.push_back(values_[t]);
      all.push_back(gradients_[t]);
    }
    all.insert(all.end(), saved_.begin(), saved_.end());
    const int64_t end = PlaceBuffers(all);
    for (size_t t = 0; t < values_.size(); ++t) {
      plan.values.push_back(all[2 * t].offset);
      plan.gradients.push_back(program_.tensors[t].gradient ? all[2 * t + 1].offset : -1);
    }
    auto next = all.begin() + 2 * static_cast<std::ptrdiff_t>(values_.size());
    for (const Stage& stage : program_.stages) {
      std::vector<int64_t>& places = plan.saved.emplace_back();
      for (size_t k = 0; k < stage.saved.size(); ++k) places.push_back(next++->offset);
    }
    return end;
  }

 private:
  static void Live(CardBuffer& buffer, int time) {
    buffer.first = std::min(buffer.first, time);
    buffer.last = std::max(buffer.last, time);
  }

  void AddStage(int s) {
    const Stage& stage = program_.stages[s];
    const int backward = 2 * last_ - s;
    Live(values_[stage.x], s);
    Live(values_[stage.y], s);
    Live(gradients_[stage.y], backward);
    if (stage.kind != StageKind::kOperator && stage.input_gradient) {
      Live(gradients_[stage.x], backward);
    }
    const bool reads_x =
        stage.linear() || (stage.input_gradient && (stage.kind == StageKind::kMaxPool ||
                                                    stage.kind == StageKind::kAveragePool ||
                                                    stage.kind == StageKind::kRelu));
    if (reads_x) Live(values_[stage.x], backward);
    if (stage.reads_y || (stage.linear() && stage.relu)) Live(values_[stage.y], backward);
    if (stage.linear()) {
      const int lag = ParametersDone(program_, s);
      Live(values_[stage.x], lag);
      Live(gradients_[stage.y], lag);
    }
    for (const StageInput& input : stage.inputs) {
      if (input.tensor < 0) continue;
      Live(values_[input.tensor], s);
      if (stage.reads_x && input.read) Live(values_[input.tensor], backward);
      if (input.gradient) Live(gradients_[input.tensor], backward);
    }
    for (const SavedFloats& floats : stage.saved) {
      const int64_t bytes = 4 * (floats.fixed + floats.per_sample * options_.max_batch);
      saved_.push_back({bytes, s, stage.backward ? backward : s, 0});
    }
  }

  const CardProgram& program_;
  const MemoryOptions& options_;
  const int last_;
  std::vector<CardBuffer> values_, gradients_;  // by tensor
  std::vector<CardBuffer> saved_;               // by stage
};

// Of the largest operation.
int64_t ScratchBytes(const CardProgram& program, const MemoryOptions& options) {
  int64_t bytes = 0;
  for (const Stage& stage : program.stages) {
    bytes = std::max(bytes, 4 * stage.scratch_floats);
    if (stage.add_gradient) {
      bytes = std::max(
          bytes, program.tensors[stage.x].elements * options.max_batch * options.element_bytes);
    }
  }
  // The logits of the answers.
  if (program.loss().rows > 1) {
    bytes = std::max(bytes, options.max_batch * program.classes * options.element_bytes);
  }
  return bytes;
}

}  // namespace

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

int64_t ConvWorkspaceBytes(const WindowGeometry& g, int64_t n) {
  const int64_t in = int64_t{g.in_c} * g.in_h * g.in_w, out = int64_t{g.out_c} * g.out_h * g.out_w;
  const int64_t filter = int64_t{g.out_c} * (g.in_c / g.groups) * g.kernel_h * g.kernel_w;
  // Engines ask for some bytes more.
  return std::max(kWorkspaceBytes, 4 * (n * (in + out) + filter) + (int64_t{1} << 20));
}

MemoryPlan PlanMemory(const CardProgram& program, const MemoryOptions& options) {
  MemoryPlan plan;
  int64_t end = Lives(program, options).Place(plan);
  const auto take = [&end](int64_t bytes) {
    const int64_t offset = end;
    end += RoundUp(bytes);
    return offset;
  };
  const int64_t n = options.max_batch, flat = options.flat_bytes;
  plan.header = take(static_cast<int64_t>(sizeof(BatchHeader)) + n * 4);
  plan.images = take(program.tensors[0].elements * n * static_cast<int64_t>(sizeof(float)));
  plan.targets = program.loss().squared_error
                     ? take(n * program.target_numbers() * static_cast<int64_t>(sizeof(float)))
                     : plan.header + static_cast<int64_t>(sizeof(BatchHeader));
  plan.ids = take(program.draws ? n * 8 : 0);
  plan.row_loss = take(n * program.loss().rows * 8);
  plan.row_correct = take(n * program.loss().rows * 4);
  plan.parts = take(int64_t{kSumParts} * program.widest_bias * flat);
  plan.stage_gradient = take(program.largest_gradient * flat);
  plan.scratch = take(ScratchBytes(program, options));
  int64_t workspace = options.workspace_bytes;
  for (const Stage& stage : program.stages) {
    if (!options.conv_workspace || stage.kind != StageKind::kConv) continue;
    workspace = std::max(workspace, ConvWorkspaceBytes(stage.window, n));
  }
  plan.workspace = take(workspace);
  plan.parameter_workspace = take(workspace);
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
