// The encodings one by one (gradient_format.h), and what they share. Inside this folder only.
#ifndef CAPSTAN_TRAINING_COMPRESS_ENCODINGS_H_
#define CAPSTAN_TRAINING_COMPRESS_ENCODINGS_H_

#include <cstdint>
#include <cstring>

#include "absl/types/span.h"
#include "training/chunks/flat_layout.h"

namespace capstan::training::compress {

inline void PutWord(float* to, uint32_t word) { std::memcpy(to, &word, sizeof word); }
inline uint32_t WordAt(const float* from) {
  uint32_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

inline constexpr int64_t kBlock = 256;  // of int8 and 1bit

// The numbers that top_k sends of so many, 1..floats.
int64_t KeptOf(double ratio, int64_t floats);

void EncodeBinary16(absl::Span<const float> in, absl::Span<float> out);
void DecodeBinary16(absl::Span<const float> encoded, absl::Span<float> out);
void EncodeBFloat16(absl::Span<const float> in, absl::Span<float> out);
void DecodeBFloat16(absl::Span<const float> encoded, absl::Span<float> out);
void EncodeInt8(absl::Span<const float> in, absl::Span<float> out);
void DecodeInt8(absl::Span<const float> encoded, absl::Span<float> out);

// `left` is what is to be encoded, and becomes what is left of it. All numbers are finite.
void EncodeTwoBit(float threshold, float loss_scale, absl::Span<float> left, absl::Span<float> out);
// `padding`: of `left`, ascending.
void EncodeOneBit(float loss_scale, absl::Span<const FlatRange> padding, absl::Span<float> left,
                  absl::Span<float> out);
// Words of a chunk, of either, of which the first number at least is decoded as NaN.
void EncodeNothing(absl::Span<float> out);
void DecodeTwoBit(absl::Span<const float> encoded, absl::Span<float> out);
void DecodeOneBit(absl::Span<const float> encoded, absl::Span<float> out);

// As above, but numbers may be of any kind. NaN is larger than infinity.
void EncodeTopK(float loss_scale, absl::Span<float> left, absl::Span<float> out);
bool IsTopK(absl::Span<const float> encoded, int64_t floats);
// An index that IsTopK refuses is left out: words in shared memory may have changed since.
void DecodeTopK(absl::Span<const float> encoded, absl::Span<float> out);

}  // namespace capstan::training::compress

#endif  // CAPSTAN_TRAINING_COMPRESS_ENCODINGS_H_
