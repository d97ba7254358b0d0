// The formats in which a lane's gradient leaves a worker. Each chunk is encoded by itself. The size
// of an encoded chunk, in words of 4 bytes, follows from the format and the number of floats.
// Everything is little-endian.
//
//   none    the floats.
//   fp16    IEEE binary16, rounded to nearest even, infinite from 65520 on. Two in a word.
//   bf16    the upper half of a float, rounded to nearest even. Two in a word.
//   int8    blocks of 256 floats: a float `scale`, the largest magnitude / 127, then x / scale as
//           int8, rounded to nearest even. Four in a word.
//   2bit    a float t, then 2 bits for each number r: 1 stands for t (r >= t), 2 for -t (r <= -t),
//           0 for 0. 16 in a word. MXNet's `2bit`: its documentation of gradient compression.
//   1bit    blocks of 256 numbers: a float, the mean magnitude of the block, then the sign of each
//           number: 1 is negative. 32 in a word. Seide et al. 2014, "1-Bit Stochastic Gradient
//           Descent", whose blocks are columns of a matrix.
//   top_k   the k numbers of the largest magnitude, k = ratio x floats, rounded up: their k indices
//           as uint32, ascending, then the k floats. Of equal magnitudes, the lower index goes
//           first.
//
// 2bit, 1bit and top_k work with error feedback (Karimireddy et al. 2019, "Error Feedback Fixes
// SignSGD"). The number r that is encoded is gradient / loss scale + residual, and the new residual
// is r minus what the shard decodes. So nothing is left out for ever.
//
// A number that is not finite never becomes finite: int8 makes its block NaN, 2bit the chunk, 1bit
// the first block of the chunk, and the other formats keep it. With error feedback, the residual of
// the chunk then stays as it was.
//
// The bits are the same on every processor: sums have a fixed order, and no product is fused with a
// sum. An encoded word is held in a float only to share buffers. Nothing calculates with it.
//
// Threads: pure functions.
#ifndef CAPSTAN_TRAINING_COMPRESS_GRADIENT_FORMAT_H_
#define CAPSTAN_TRAINING_COMPRESS_GRADIENT_FORMAT_H_

#include <cstdint>

#include "absl/types/span.h"
#include "training/chunks/flat_layout.h"

namespace capstan::training {

enum class GradientEncoding { kNone, kFloat16, kBFloat16, kInt8, kTwoBit, kOneBit, kTopK };

struct GradientFormat {
  GradientEncoding encoding = GradientEncoding::kNone;
  double threshold = 0.5;  // kTwoBit: above 0; of the sum over the samples
  double ratio = 0.01;     // kTopK: in (0, 1]

  bool has_feedback() const {
    return encoding == GradientEncoding::kTwoBit || encoding == GradientEncoding::kOneBit ||
           encoding == GradientEncoding::kTopK;
  }
  // Whether zeros may be decoded as other numbers: the caller sets padding to zero again.
  bool fills_padding() const { return encoding == GradientEncoding::kOneBit; }
  // Whether there are words that IsWellFormed refuses.
  bool can_be_malformed() const { return encoding == GradientEncoding::kTopK; }
};

// Words of an encoded chunk of `floats` floats, 1..2^31.
int64_t EncodedWords(const GradientFormat& format, int64_t floats);

// For formats without feedback. out.size() == EncodedWords(format, gradient.size()).
void Encode(const GradientFormat& format, absl::Span<const float> gradient, absl::Span<float> out);

struct FeedbackArgs {
  double loss_scale = 1;  // a power of two; in the gradient and in what is sent, not in residuals
  double samples = 1;     // by which the gradient was divided; t is threshold / samples
  // Of the chunk, from its first float on, ascending. It is zero in gradient and residual.
  absl::Span<const FlatRange> padding;
};
// For formats with feedback. Padding is encoded too: 1bit makes it the mean of its block, so the
// caller sets it to zero again in the new residual and in what is decoded. The first three spans
// have one size and do not overlap. out.size() is EncodedWords of that size.
void EncodeWithFeedback(const GradientFormat& format, const FeedbackArgs& args,
                        absl::Span<const float> gradient, absl::Span<const float> residual,
                        absl::Span<float> new_residual, absl::Span<float> out);

// Whether a chunk of `floats` floats can be decoded from these words, EncodedWords of them. top_k:
// the indices rise and are below `floats`.
bool IsWellFormed(const GradientFormat& format, absl::Span<const float> encoded, int64_t floats);

// Overwrites all of `out`. The words are well-formed.
// encoded.size() == EncodedWords(format, out.size()).
void Decode(const GradientFormat& format, absl::Span<const float> encoded, absl::Span<float> out);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_COMPRESS_GRADIENT_FORMAT_H_
