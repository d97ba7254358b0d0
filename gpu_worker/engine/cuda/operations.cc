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

void Walk::Forward(Operations& ops, int64_t n, int image_type) const {
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
        ops.ToCanonical(n, stage.window.in_c, stage.window.in_h * stage.window.in_w, x, y);
        break;
      case StageKind::kLoss:
        break;
    }
  }
}

void Walk::Loss(Operations& ops, int64_t n, bool gradient) const {
  const auto* const header = reinterpret_cast<const BatchHeader*>(at(memory_.header));
  auto* const row_loss = reinterpret_cast<double*>(at(memory_.row_loss));
  auto* const row_correct = reinterpret_cast<int32_t*>(at(memory_.row_correct));
  ops.Loss(n, program_.classes, header, reinterpret_cast<const int32_t*>(header + 1), logits(),
           gradient && program_.trains() ? gradient_of(program_.loss().x) : nullptr, row_loss,
           row_correct);
  ops.SumRows(n, row_loss, row_correct, sums_);
}

void Walk::Backward(Operations& ops, int64_t n) const {
  if (!program_.trains()) return;
  for (int s = static_cast<int>(program_.stages.size()) - 2; s >= 0; --s) {
    const Stage& stage = program_.stages[s];
    if (stage.kind == StageKind::kConv || stage.kind == StageKind::kDense) {
      LinearBackward(ops, s, n);
      ops.StageDone(s);
      continue;
    }
    if (!stage.input_gradient) continue;
    switch (stage.kind) {
      case StageKind::kMaxPool:
      case StageKind::kAveragePool:
        ops.PoolBackward(stage, n, value(stage.x), gradient_of(stage.y), gradient_of(stage.x));
        break;
      case StageKind::kRelu:
        ops.ReluBackward(n * program_.tensors[stage.x].elements, value(stage.x),
                         gradient_of(stage.x));
        break;
      case StageKind::kPermute:
        ops.ToChannelsLast(n, stage.window.in_c, stage.window.in_h * stage.window.in_w,
                           gradient_of(stage.y), gradient_of(stage.x));
        break;
      default:
        break;
    }
  }
  ops.BackwardDone();
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
    ops.LinearDataGradient(index, n, dy, weight_of(stage), gradient_of(stage.x));
  }
}

}  // namespace capstan::engine::cuda
