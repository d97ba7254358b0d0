#include "training/optim/trust_rule.h"

#include <algorithm>

#include "services/check/check.h"
#include "training/norm/norm_tree.h"
#include "training/optim/apply.h"

namespace capstan::training {
namespace {

constexpr int64_t kScaledFloats = 4096;  // per block; 16 KiB of the stack

}  // namespace

std::shared_ptr<const TensorPieces> PiecesFor(const Optimizer& optimizer,
                                              const FlatLayout& layout) {
  return optimizer.trust_rule() == nullptr ? nullptr : std::make_shared<const TensorPieces>(layout);
}

TensorRun TensorsIn(const FlatLayout& layout, const FlatRange& range) {
  const std::vector<TensorSlot>& slots = layout.slots();
  TensorRun run;
  for (size_t i = 0; i < slots.size() && slots[i].spec.kind == TensorKind::kWeight; ++i) {
    const bool more = i + 1 < slots.size() && slots[i + 1].spec.kind == TensorKind::kWeight;
    const int64_t end = more ? slots[i + 1].offset : layout.statistics_begin();
    if (end <= range.offset) run.first = static_cast<int32_t>(i) + 1;
    if (end > range.offset && slots[i].offset < range.end()) ++run.count;
  }
  return run;
}

void MeasureChunk(const FlatLayout& layout, const TensorPieces& pieces, int32_t chunk,
                  const Optimizer& optimizer, const VersionUpdate& update,
                  const VersionVectors& vectors, std::vector<PieceSquares>* out) {
  const TrustRule* const rule = optimizer.trust_rule();
  CAPSTAN_CHECK(rule != nullptr);
  const int64_t begin = layout.ChunkRange(chunk).offset;
  const int states = optimizer.state_floats_per_weight();
  const auto scale = static_cast<float>(update.gradient_scale);
  alignas(64) float gradient[kScaledFloats];
  for (const TensorPiece& piece : pieces.Of({chunk, 1})) {
    const RuleStep step{.number = update.applied_steps + 1,
                        .decay = Decays(layout.slots()[piece.tensor].spec, optimizer.update())};
    PieceSquares squares{.chunk = chunk, .tensor = piece.tensor};
    for (int64_t at = piece.range.offset - begin, end = at + piece.range.size; at < end;
         at += kScaledFloats) {
      const int64_t n = std::min(kScaledFloats, end - at);
      const float* const sum = vectors.sum + at;
      const float* const weights = vectors.in + at;
      if (scale != 1) {
        for (int64_t i = 0; i < n; ++i) gradient[i] = sum[i] * scale;
      }
      squares.weights += SquareSum({weights, static_cast<size_t>(n)});
      squares.direction +=
          rule->DirectionSquares(weights, scale == 1 ? sum : gradient,
                                 vectors.state == nullptr ? nullptr : vectors.state + at * states,
                                 static_cast<size_t>(n), step);
    }
    out->push_back(squares);
  }
}

std::vector<double> TrustRatios(const FlatLayout& layout, const Optimizer& optimizer,
                                const VersionUpdate& update, absl::Span<const TensorNorms> norms) {
  const TrustRule* const rule = optimizer.trust_rule();
  CAPSTAN_CHECK(rule != nullptr);
  std::vector<double> ratios(norms.size(), 1);
  for (size_t tensor = 0; tensor < norms.size(); ++tensor) {
    const TensorSpec& spec = layout.slots()[tensor].spec;
    CAPSTAN_CHECK(spec.kind == TensorKind::kWeight);
    if (!rule->scales_all_tensors() && spec.init != TensorInit::kInitializer) continue;
    TensorNorms clipped = norms[tensor];
    clipped.direction *= update.clip_factor;
    ratios[tensor] = rule->Ratio(clipped, Decays(spec, optimizer.update()));
  }
  return ratios;
}

}  // namespace capstan::training
