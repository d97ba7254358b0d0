// Where the chunks of a gradient lie when it travels: one after another, each encoded by itself.
// Positions and sizes are in words of 4 bytes. If gradients are not compressed, a word is a float and
// everything lies as in FlatLayout.
//
// Chunks of running statistics are never compressed (rule R3).
//
// Threads: const methods may be called from many threads.
#ifndef CAPSTAN_TRAINING_COMPRESS_GRADIENT_LAYOUT_H_
#define CAPSTAN_TRAINING_COMPRESS_GRADIENT_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "training/chunks/flat_layout.h"
#include "training/chunks/placement.h"
#include "training/compress/gradient_format.h"

namespace capstan::training {

// Sets the padding of a chunk to zero.
void ClearPadding(const std::vector<FlatRange>& padding, absl::Span<float> chunk);

class GradientLayout {
 public:
  // `format` is valid (gradient_format.h).
  GradientLayout(const FlatLayout& layout, const GradientFormat& format);

  int64_t total_words() const { return begins_.back(); }
  FlatRange ChunkRange(int32_t chunk) const { return {begins_[chunk], Words(chunk)}; }
  FlatRange RangeOf(const ChunkRun& run) const {
    return {begins_[run.first_chunk], begins_[run.end()] - begins_[run.first_chunk]};
  }
  // How this chunk is encoded.
  const GradientFormat& FormatOf(int32_t chunk) const {
    return chunk < compressed_chunks_ ? format_ : exact_;
  }
  // How chunks of weights are encoded.
  const GradientFormat& format() const { return format_; }

  // If format().fills_padding(): the padding of a chunk of weights, from its first float on. It is zero
  // in every gradient.
  const std::vector<FlatRange>& Padding(int32_t chunk) const { return padding_[chunk]; }

  // As training::FramesOf, for encoded chunks. Their checksums lie in the header of a frame, so a
  // frame has at most kMaxFrameChunks of them.
  std::vector<ChunkRun> FramesOf(const ChunkRun& run, int64_t max_payload_bytes) const;
  static constexpr int32_t kMaxFrameChunks = 8192;

 private:
  int64_t Words(int32_t chunk) const { return begins_[chunk + 1] - begins_[chunk]; }

  GradientFormat format_;
  GradientFormat exact_;                         // kNone
  int32_t compressed_chunks_ = 0;                // the chunks before this one
  std::vector<int64_t> begins_;                  // by chunk, and the end
  std::vector<std::vector<FlatRange>> padding_;  // by chunk of weights, if the format fills it
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_COMPRESS_GRADIENT_LAYOUT_H_
