// Chunks that tests encode and decode. The words and floats that a call must write begin as stale
// ones.
#ifndef CAPSTAN_TRAINING_COMPRESS_TEST_GRADIENTS_H_
#define CAPSTAN_TRAINING_COMPRESS_TEST_GRADIENTS_H_

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "training/compress/gradient_format.h"

namespace capstan::training {

inline constexpr float kStale = -7777.0f;
inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The words, bit by bit.
inline std::vector<uint32_t> BitsOf(absl::Span<const float> words) {
  std::vector<uint32_t> bits(words.size());
  if (!bits.empty()) std::memcpy(bits.data(), words.data(), words.size() * sizeof(float));
  return bits;
}
inline std::vector<float> WordsOf(absl::Span<const uint32_t> bits) {
  std::vector<float> words(bits.size());
  if (!words.empty()) std::memcpy(words.data(), bits.data(), bits.size() * sizeof(float));
  return words;
}
inline float FloatOf(uint32_t bits) { return WordsOf({&bits, 1})[0]; }

inline std::vector<float> Encoded(const GradientFormat& format, absl::Span<const float> gradient) {
  std::vector<float> words(EncodedWords(format, static_cast<int64_t>(gradient.size())), kStale);
  Encode(format, gradient, absl::MakeSpan(words));
  return words;
}
inline std::vector<float> Decoded(const GradientFormat& format, absl::Span<const float> encoded,
                                  size_t floats) {
  std::vector<float> out(floats, kStale);
  Decode(format, encoded, absl::MakeSpan(out));
  return out;
}
inline std::vector<float> RoundTrip(const GradientFormat& format,
                                    absl::Span<const float> gradient) {
  return Decoded(format, Encoded(format, gradient), gradient.size());
}

// What one step with error feedback makes.
struct FeedbackStep {
  std::vector<float> encoded;
  std::vector<float> decoded;
  std::vector<float> residual;  // the new one
};
inline FeedbackStep StepOf(const GradientFormat& format, absl::Span<const float> gradient,
                           absl::Span<const float> residual, const FeedbackArgs& args = {}) {
  FeedbackStep step;
  step.encoded.assign(EncodedWords(format, static_cast<int64_t>(gradient.size())), kStale);
  step.residual.assign(gradient.size(), kStale);
  EncodeWithFeedback(format, args, gradient, residual, absl::MakeSpan(step.residual),
                     absl::MakeSpan(step.encoded));
  step.decoded = Decoded(format, step.encoded, gradient.size());
  return step;
}

// As above with any format. Those without feedback keep the residual that they got.
inline FeedbackStep AnyStepOf(const GradientFormat& format, absl::Span<const float> gradient,
                              absl::Span<const float> residual) {
  if (format.has_feedback()) return StepOf(format, gradient, residual);
  FeedbackStep step;
  step.encoded = Encoded(format, gradient);
  step.decoded = Decoded(format, step.encoded, gradient.size());
  step.residual.assign(residual.begin(), residual.end());
  return step;
}

// Numbers around 0 like those of a gradient, of many magnitudes.
inline std::vector<float> RandomGradient(size_t floats, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> gradient(floats);
  for (float& value : gradient) value = normal(random) * normal(random);
  return gradient;
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_COMPRESS_TEST_GRADIENTS_H_
