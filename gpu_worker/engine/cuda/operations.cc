#include "gpu_worker/engine/cuda/operations.h"

namespace capstan::engine::cuda {

void Walk::CopyWeights(Operations& ops) const {
  std::vector<WeightCopy> copies;
  for (const Stage& stage : program_.stages) {
    if (stage.copy >= 0) {
      copies.push_back({flat_weight(stage.weight), weight_of(stage), stage.weight_elements(),
                        stage.weight_channels, stage.weight_pixels});
    }
    if (stage.bias_copy >= 0) {
      copies.push_back({flat_weight(stage.bias), bias_of(stage), stage.weight_rows, 1, 1});
    }
  }
  if (!copies.empty()) ops.CopyWeights(copies);
}

void Walk::Forward(Operations& ops, int64_t n, int image_type, bool training) const {
  if (image_type >= 0) {
    ops.LoadImages(n, reinterpret_cast<const BatchHeader*>(at(memory_.header)), at(memory_.images),
                   image_type, value(0));
  }
  for (int s = 0; s + 1 < static_cast<int>(program_.stages.size()); ++s) {
    const Stage& stage = program_.stages[s];
    void* const x = value(stage.x);
    void* const y = value(stage.y);
    switch (stage.kind) {
      case StageKind::kConv:
      case StageKind::kDense:
        ops.LinearForward(s, n, x, weight_of(stage), bias_of(stage), y);
        break;
      case StageKind::kMaxPool:
      case StageKind::kAveragePool:
        ops.PoolForward(stage, n, x, y);
        break;
      case StageKind::kRelu:
        ops.ReluForward(n * program_.tensors[stage.x].elements, x);
        break;
      case StageKind::kPermute:
        if (stage.to_channels_last) {
          ops.ToChannelsLast(n, stage.window.in_c, stage.window.in_h * stage.window.in_w, x, y);
        } else {
          ops.ToCanonical(n, stage.window.in_c, stage.window.in_h * stage.window.in_w, x, y);
        }
        break;
      case StageKind::kOperator:
        ops.OperatorForward(s, CallOf(s, n, training));
        break;
      case StageKind::kLoss:
        break;
    }
  }
}

void Walk::Loss(Operations& ops, int64_t n, bool gradient) const {
  const Stage& loss = program_.loss();
  const auto* const header = reinterpret_cast<const BatchHeader*>(at(memory_.header));
  auto* const row_loss = reinterpret_cast<double*>(at(memory_.row_loss));
  auto* const row_correct = reinterpret_cast<int32_t*>(at(memory_.row_correct));
  const bool trains = gradient && program_.trains();
  const float* tokens = nullptr;
  if (!loss.inputs.empty()) {
    const StageInput& input = loss.inputs[0];
    tokens = static_cast<const float*>(value(input.tensor));
    if (trains && input.gradient && !input.add) {
      ops.Clear(n * program_.tensors[input.tensor].elements, gradient_of(input.tensor));
    }
  }
  ops.Loss(loss, n, program_.classes, header, at(memory_.targets), tokens, logits(),
           trains ? gradient_of(loss.x) : nullptr, row_loss, row_correct);
  ops.SumRows(n * loss.rows, row_loss, row_correct, sums_);
}

void Walk::Backward(Operations& ops, int64_t n) const {
  if (!program_.trains()) return;
  for (int s = static_cast<int>(program_.stages.size()) - 2; s >= 0; --s) {
    const Stage& stage = program_.stages[s];
    if (stage.linear()) {
      LinearBackward(ops, s, n);
      ops.StageDone(s);
      continue;
    }
    if (stage.kind == StageKind::kOperator) {
      if (stage.backward) OperatorBackward(ops, s, n);
      continue;
    }
    if (!stage.input_gradient) continue;
    const int32_t pixels = stage.window.in_h * stage.window.in_w;
    switch (stage.kind) {
      case StageKind::kMaxPool:
      case StageKind::kAveragePool:
        ops.PoolBackward(stage, n, value(stage.x), gradient_of(stage.y), gradient_target(stage));
        FinishGradient(ops, stage, n);
        break;
      case StageKind::kRelu:
        ops.ReluBackward(n * program_.tensors[stage.x].elements, value(stage.x),
                         gradient_of(stage.x));
        break;
      case StageKind::kPermute:
        if (stage.to_channels_last) {
          ops.ToCanonical(n, stage.window.in_c, pixels, gradient_of(stage.y),
                          gradient_target(stage));
        } else {
          ops.ToChannelsLast(n, stage.window.in_c, pixels, gradient_of(stage.y),
                             gradient_target(stage));
        }
        FinishGradient(ops, stage, n);
        break;
      default:
        break;
    }
  }
  ops.BackwardDone();
}

void Walk::FinishGradient(Operations& ops, const Stage& stage, int64_t n) const {
  if (!stage.add_gradient) return;
  ops.AddInto(n * program_.tensors[stage.x].elements, at(memory_.scratch), gradient_of(stage.x));
}

OperatorCall Walk::CallOf(int index, int64_t n, bool training) const {
  const Stage& stage = program_.stages[index];
  OperatorCall call;
  call.n = n;
  call.training = training;
  for (const StageInput& input : stage.inputs) {
    call.x.push_back(input.tensor < 0 ? nullptr : value(input.tensor));
  }
  call.y = value(stage.y);
  for (const int64_t place : memory_.saved[static_cast<size_t>(index)]) {
    call.saved.push_back(reinterpret_cast<float*>(at(place)));
  }
  for (const int64_t offset : stage.parameters) {
    call.parameters.push_back(static_cast<const float*>(flat_weight(offset)));
  }
  call.header = reinterpret_cast<const BatchHeader*>(at(memory_.header));
  call.ids = reinterpret_cast<const int64_t*>(at(memory_.ids));
  call.scratch = reinterpret_cast<float*>(at(memory_.scratch));
  return call;
}

void Walk::OperatorBackward(Operations& ops, int index, int64_t n) const {
  const Stage& stage = program_.stages[index];
  OperatorCall call = CallOf(index, n, /*training=*/true);
  call.dy = gradient_of(stage.y);
  for (const StageInput& input : stage.inputs) {
    call.dx.push_back(input.gradient ? gradient_of(input.tensor) : nullptr);
  }
  for (const int64_t offset : stage.parameters) {
    call.dparameters.push_back(static_cast<float*>(flat_gradient(offset)));
  }
  ops.OperatorBackward(index, call);
  if (stage.has_parameters()) ops.StageDone(index);
}

void Walk::LinearBackward(Operations& ops, int index, int64_t n) const {
  const Stage& stage = program_.stages[index];
  void* const dy = gradient_of(stage.y);
  const int64_t elements = n * program_.tensors[stage.y].elements;
  if (stage.relu) ops.ReluBackward(elements, value(stage.y), dy);
  ops.BeginParameters();
  if (stage.bias >= 0) {
    ops.BiasGradient(elements / stage.weight_rows, stage.weight_rows, dy, at(memory_.parts),
                     flat_gradient(stage.bias));
  }
  const bool straight = !stage.permuted() && !stage.rounded_gradient;
  void* const dw = straight ? flat_gradient(stage.weight) : at(memory_.stage_gradient);
  ops.LinearWeightGradient(index, n, value(stage.x), dy, dw);
  if (!straight) ops.GradientToFlat(stage, dw, flat_gradient(stage.weight));
  ops.EndParameters();
  if (stage.input_gradient) {
    ops.LinearDataGradient(index, n, dy, weight_of(stage), gradient_target(stage));
    FinishGradient(ops, stage, n);
  }
}

}  // namespace capstan::engine::cuda
