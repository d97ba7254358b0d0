#include "gpu_worker/task/lane_encoder.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "services/check/check.h"
#include "services/check/mutant.h"
#include "training/compress/gradient_format.h"

namespace capstan::gpu_worker {

using exchange::FloatBuffer;
using training::FlatRange;

namespace {

// In several sums, so that one addition need not wait for another.
double SquaresOf(absl::Span<const float> numbers) {
  constexpr size_t kSums = 8;
  double sums[kSums] = {};
  for (size_t i = 0; i < numbers.size(); ++i) {
    sums[i % kSums] += static_cast<double>(numbers[i]) * numbers[i];
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

}  // namespace

LaneEncoder::LaneEncoder(const training::FlatLayout& layout, const training::GradientFormat& format,
                         Residuals residuals)
    : layout_(layout),
      gradients_(layout, format),
      kept_(residuals),
      encoded_(gradients_.total_words()),
      after_(layout.total_floats()) {}

void LaneEncoder::Begin(int32_t lane, std::shared_ptr<FloatBuffer> residual) {
  CAPSTAN_CHECK(kept_ == Residuals::kKept);
  if (residual == nullptr) residual = std::make_shared<FloatBuffer>(layout_.total_floats());
  CAPSTAN_CHECK(residual->size() == layout_.total_floats());
  OfLane& of = residuals_[lane];
  of = OfLane();
  of.first = false;
  of.applied = false;  // there is no `after` yet
  of.before = std::move(residual);
  of.after = std::make_shared<FloatBuffer>(layout_.total_floats());
}

std::shared_ptr<const FloatBuffer> LaneEncoder::Residual(int32_t lane) const {
  const auto it = residuals_.find(lane);
  return it == residuals_.end() ? nullptr : it->second.now();
}

LaneEncoder::OfLane& LaneEncoder::At(const LaneStep& at) {
  OfLane& residual = residuals_[at.lane];
  if (kept_ == Residuals::kKept) {
    if (residual.before == nullptr) {
      CAPSTAN_CHECK(CAPSTAN_MUTANT("reissued_without_residual"));
      Begin(at.lane, nullptr);
    }
    const bool commits = residual.applied || CAPSTAN_MUTANT("residual_of_a_skipped_step");
    if (commits && residual.step >= 0) std::swap(residual.before, residual.after);
    // It may be on its way into a file. Then it is given back when that is written.
    residual.after.reset();
    residual.after = after_.Lend();
    // As without kKept, so that both give the same bits as long as nothing fails.
    residual.first = at.step_before < 0;
    residual.step = at.step;
    residual.applied = true;
    return residual;
  }
  residual.first = residual.before == nullptr || residual.step != at.step_before;
  if (residual.before == nullptr) {
    residual.before = std::make_shared<FloatBuffer>(layout_.total_floats());  // zeros
    residual.after = std::make_shared<FloatBuffer>(layout_.total_floats());
  } else if (residual.first) {
    std::fill(residual.before->span().begin(), residual.before->span().end(), 0.0f);
    residual.squares_before = 0;
  } else if (residual.applied) {
    std::swap(residual.before, residual.after);
    residual.squares_before = residual.squares_after;
  }
  residual.step = at.step;
  residual.applied = true;
  return residual;
}

std::shared_ptr<FloatBuffer> LaneEncoder::Encode(const LaneStep& at,
                                                 absl::Span<const float> gradient) {
  CAPSTAN_CHECK(static_cast<int64_t>(gradient.size()) == layout_.total_floats());
  std::shared_ptr<FloatBuffer> encoded = encoded_.Lend();
  OfLane* const residual = gradients_.format().has_feedback() ? &At(at) : nullptr;
  training::FeedbackArgs args{at.loss_scale, static_cast<double>(at.samples)};
  double squares = 0;
  for (int32_t chunk = 0; chunk < layout_.chunk_count(); ++chunk) {
    const FlatRange from = layout_.ChunkRange(chunk);
    const FlatRange to = gradients_.ChunkRange(chunk);
    const training::GradientFormat& format = gradients_.FormatOf(chunk);
    const absl::Span<const float> floats = gradient.subspan(from.offset, from.size);
    const absl::Span<float> words = encoded->span().subspan(to.offset, to.size);
    if (format.has_feedback()) {
      if (format.fills_padding()) args.padding = gradients_.Padding(chunk);
      const absl::Span<float> after = residual->after->span().subspan(from.offset, from.size);
      training::EncodeWithFeedback(
          format, args, floats,
          absl::Span<const float>(residual->before->span()).subspan(from.offset, from.size), after,
          words);
      if (format.fills_padding()) training::ClearPadding(gradients_.Padding(chunk), after);
      if (kept_ == Residuals::kDropped) squares += SquaresOf(after);  // while the cache has it
    } else {
      training::Encode(format, floats, words);
    }
  }
  if (residual != nullptr && residual->first) {
    std::fill(residual->after->span().begin(), residual->after->span().end(), 0.0f);
    squares = 0;
  }
  if (residual != nullptr) residual->squares_after = squares;
  return encoded;
}

void LaneEncoder::Decode(const FloatBuffer& encoded, absl::Span<float> out) const {
  CAPSTAN_CHECK(static_cast<int64_t>(out.size()) == layout_.total_floats());
  for (int32_t chunk = 0; chunk < layout_.chunk_count(); ++chunk) {
    const FlatRange from = gradients_.ChunkRange(chunk);
    const FlatRange to = layout_.ChunkRange(chunk);
    const training::GradientFormat& format = gradients_.FormatOf(chunk);
    const absl::Span<float> floats = out.subspan(to.offset, to.size);
    training::Decode(format, encoded.span().subspan(from.offset, from.size), floats);
    if (format.fills_padding()) training::ClearPadding(gradients_.Padding(chunk), floats);
  }
}

void LaneEncoder::Skipped(int64_t step) {
  for (auto& entry : residuals_) {
    if (entry.second.step == step) entry.second.applied = false;
  }
}

void LaneEncoder::Skipped(const LaneStep& at) {
  const auto it = residuals_.find(at.lane);
  if (it == residuals_.end()) return;
  if (it->second.step != at.step) At(at);
  it->second.applied = false;
}

void LaneEncoder::KeepLanes(const std::function<bool(int32_t lane)>& keep) {
  for (auto it = residuals_.begin(); it != residuals_.end();) {
    it = keep(it->first) ? std::next(it) : residuals_.erase(it);
  }
}

double LaneEncoder::Norm() const {
  double squares = 0;
  for (const auto& entry : residuals_) {
    squares += entry.second.applied ? entry.second.squares_after : entry.second.squares_before;
  }
  return std::sqrt(squares);
}

}  // namespace capstan::gpu_worker
