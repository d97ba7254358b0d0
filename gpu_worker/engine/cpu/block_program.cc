#include "gpu_worker/engine/cpu/block_program.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace capstan::engine {
namespace {

double Now() {  // seconds
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlockProgram>> BlockProgram::Create(
    const Lowered& lowered, const std::vector<StageParameters>& parameters, int64_t batch,
    bool use_onednn) {
  auto program = std::unique_ptr<BlockProgram>(new BlockProgram(lowered, parameters, batch));
  for (const Stage& stage : lowered.stages) {
    std::unique_ptr<LinearKernel> kernel;
    if (stage.kind == StageKind::kLinear) {
      absl::StatusOr<std::unique_ptr<LinearKernel>> made = std::unique_ptr<LinearKernel>();
      if (use_onednn) made = MakeOnednnLinear(stage.linear, batch);
      if (made.ok() && *made == nullptr) made = MakePlainLinear(stage.linear, batch);
      if (!made.ok()) {
        return absl::Status(made.status().code(),
                            absl::StrCat("node ", stage.name, ": ", made.status().message()));
      }
      kernel = *std::move(made);
    }
    program->kernels_.push_back(std::move(kernel));
  }
  program->PlanArena();
  return program;
}

// Time runs forward over the stages, 0 to last, and back: stage s is done again at 2 * last - s.
void BlockProgram::PlanArena() {
  const int last = static_cast<int>(lowered_.stages.size()) - 1;
  const auto backward = [last](int stage) { return 2 * last - stage; };
  const int tensor_count = static_cast<int>(lowered_.tensors.size());
  values_.assign(tensor_count, {0, 2 * last, 0, 0});
  gradients_.assign(tensor_count, {0, 2 * last, 0, 0});
  values_[0].first = 0;
  scratch_ = {0, 0, 2 * last, 0};  // one for all stages: no two run at the same time

  const auto live = [](ArenaBuffer& buffer, int time) {
    buffer.first = std::min(buffer.first, time);
    buffer.last = std::max(buffer.last, time);
  };
  for (int s = 0; s <= last; ++s) {
    const Stage& stage = lowered_.stages[s];
    const Tensor& input = lowered_.tensors[stage.input];
    live(values_[stage.input], s);
    live(values_[stage.output], s);
    const bool reads_value =
        stage.kind == StageKind::kLinear ||
        ((stage.kind == StageKind::kPool || stage.kind == StageKind::kRelu) && input.gradient);
    if (reads_value) live(values_[stage.input], backward(s));
    if (input.gradient) {
      live(gradients_[stage.input], backward(s));
    }
    live(gradients_[stage.output], backward(s));
    if (kernels_[s] != nullptr)
      scratch_.bytes = std::max(scratch_.bytes, kernels_[s]->scratch_bytes());
  }

  std::vector<ArenaBuffer> all;
  std::vector<ArenaBuffer*> homes;
  const auto place = [&](ArenaBuffer& buffer) {
    all.push_back(buffer);
    homes.push_back(&buffer);
  };
  for (int t = 0; t < tensor_count; ++t) {
    const Tensor& tensor = lowered_.tensors[t];
    const int64_t bytes = tensor.elements * batch_ * static_cast<int64_t>(sizeof(float));
    values_[t].bytes = bytes;
    if (tensor.gradient && !tensor.gradient_in_place) {
      gradients_[t].bytes = bytes;
      place(gradients_[t]);
    } else if (tensor.gradient) {
      values_[t].last = std::max(values_[t].last, gradients_[t].last);
    }
    place(values_[t]);
  }
  place(scratch_);
  arena_bytes_ = PlaceBuffers(all);
  for (size_t i = 0; i < all.size(); ++i) homes[i]->offset = all[i].offset;
}

int64_t BlockProgram::weight_bytes() const {
  int64_t bytes = 0;
  for (const auto& kernel : kernels_) bytes += kernel == nullptr ? 0 : kernel->weight_bytes();
  return bytes;
}

std::vector<std::string> BlockProgram::Describe() const {
  std::vector<std::string> lines;
  for (size_t s = 0; s < kernels_.size(); ++s) {
    if (kernels_[s] == nullptr) continue;
    for (const std::string& line : kernels_[s]->Describe()) {
      lines.push_back(absl::StrCat(lowered_.stages[s].name, " ", line));
    }
  }
  return lines;
}

absl::Status BlockProgram::LoadWeights(const float* weights) {
  for (size_t s = 0; s < kernels_.size(); ++s) {
    if (kernels_[s] == nullptr) continue;
    const StageParameters& at = parameters_[s];
    const absl::Status status =
        kernels_[s]->LoadWeights(weights + at.weight, at.bias < 0 ? nullptr : weights + at.bias);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BlockRunner>> BlockProgram::Bind(char* arena) {
  auto runner = std::unique_ptr<BlockRunner>(new BlockRunner());
  runner->lowered_ = &lowered_;
  runner->parameters_ = &parameters_;
  runner->batch_ = batch_;
  for (size_t t = 0; t < lowered_.tensors.size(); ++t) {
    const Tensor& tensor = lowered_.tensors[t];
    BlockRunner::TensorPlace place;
    place.value = reinterpret_cast<float*>(arena + values_[t].offset);
    if (tensor.gradient) {
      place.gradient = tensor.gradient_in_place
                           ? place.value
                           : reinterpret_cast<float*>(arena + gradients_[t].offset);
    }
    runner->places_.push_back(place);
  }
  for (size_t s = 0; s < kernels_.size(); ++s) {
    const Stage& stage = lowered_.stages[s];
    std::unique_ptr<LinearCalls> calls;
    if (kernels_[s] != nullptr) {
      const BlockRunner::TensorPlace& x = runner->places_[stage.input];
      const BlockRunner::TensorPlace& y = runner->places_[stage.output];
      absl::StatusOr<std::unique_ptr<LinearCalls>> bound =
          kernels_[s]->Bind({x.value, y.value, x.gradient, y.gradient, arena + scratch_.offset});
      if (!bound.ok()) return bound.status();
      calls = *std::move(bound);
    }
    runner->calls_.push_back(std::move(calls));
  }
  return runner;
}

absl::Status BlockRunner::Run(PassMode mode, const BlockInput& input, LossSums& sums) {
  const double start = Now();
  float* const images = places_[0].value;
  const int64_t elements = lowered_->tensors[0].elements;
  LoadImages(lowered_->input, input.count, input.images, images);
  std::memset(images + input.count * elements, 0,
              static_cast<size_t>((batch_ - input.count) * elements) * sizeof(float));
  const int last = static_cast<int>(lowered_->stages.size()) - 1;
  for (int s = 0; s < last; ++s) {
    const absl::Status status = Forward(lowered_->stages[s], calls_[s].get());
    if (!status.ok()) return status;
  }
  const TensorPlace& logits = places_[lowered_->stages[last].input];
  const int64_t classes = lowered_->classes;
  if (mode == PassMode::kPredict) {
    std::memcpy(input.logits, logits.value,
                static_cast<size_t>(input.count * classes) * sizeof(float));
    return absl::OkStatus();
  }
  const bool backward = mode == PassMode::kTrain && logits.gradient != nullptr;
  sums = SoftmaxCrossEntropy(input.count, classes, logits.value, input.labels, input.loss_scale,
                             backward ? logits.gradient : nullptr);
  const double middle = Now();
  sums.forward_seconds = middle - start;
  if (!backward) return absl::OkStatus();
  std::memset(logits.gradient + input.count * classes, 0,
              static_cast<size_t>((batch_ - input.count) * classes) * sizeof(float));
  for (int s = last - 1; s >= 0; --s) {
    const absl::Status status = Backward(s, input.gradient);
    if (!status.ok()) return status;
  }
  sums.backward_seconds = Now() - middle;
  return absl::OkStatus();
}

absl::Status BlockRunner::Forward(const Stage& stage, LinearCalls* calls) {
  float* const x = places_[stage.input].value;
  float* const y = places_[stage.output].value;
  switch (stage.kind) {
    case StageKind::kLinear:
      return calls->Forward();
    case StageKind::kPool:
      PoolForward(stage.pool, batch_, x, y);
      break;
    case StageKind::kRelu:
      ReluForward(batch_ * lowered_->tensors[stage.input].elements, x);
      break;
    case StageKind::kPermute:
      NhwcToNchw(stage.permute, batch_, x, y);
      break;
    case StageKind::kLoss:
      break;
  }
  return absl::OkStatus();
}

absl::Status BlockRunner::Backward(int index, float* gradient) {
  const Stage& stage = lowered_->stages[index];
  const TensorPlace& x = places_[stage.input];
  const TensorPlace& y = places_[stage.output];
  if (stage.kind == StageKind::kLinear) {
    const StageParameters& at = (*parameters_)[index];
    LinearCalls& calls = *calls_[index];
    const absl::Status status =
        calls.BackwardWeights(gradient + at.weight, at.bias < 0 ? nullptr : gradient + at.bias);
    if (!status.ok() || !stage.linear.data_gradient) return status;
    return calls.BackwardData();
  }
  if (x.gradient == nullptr) return absl::OkStatus();
  switch (stage.kind) {
    case StageKind::kPool:
      PoolBackward(stage.pool, batch_, x.value, y.gradient, x.gradient);
      break;
    case StageKind::kRelu:
      ReluBackward(batch_ * lowered_->tensors[stage.input].elements, x.value, x.gradient);
      break;
    case StageKind::kPermute:
      NchwToNhwc(stage.permute, batch_, y.gradient, x.gradient);
      break;
    default:
      break;
  }
  return absl::OkStatus();
}

}  // namespace capstan::engine
