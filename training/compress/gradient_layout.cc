#include "training/compress/gradient_layout.h"

#include <algorithm>

#include "services/check/check.h"

namespace capstan::training {
namespace {

// From the first float of `chunk` on.
std::vector<FlatRange> PaddingOf(const FlatLayout& layout, const FlatRange& chunk) {
  const std::vector<TensorSlot>& slots = layout.slots();  // by offset
  auto slot = std::partition_point(slots.begin(), slots.end(), [&chunk](const TensorSlot& s) {
    return s.range().end() <= chunk.offset;
  });
  std::vector<FlatRange> padding;
  int64_t at = chunk.offset;
  while (at < chunk.end()) {
    const int64_t begin = slot == slots.end() ? chunk.end() : std::min(slot->offset, chunk.end());
    if (begin > at) padding.push_back({at - chunk.offset, begin - at});
    at = slot == slots.end() ? begin : std::max(begin, slot->range().end());
    if (slot != slots.end()) ++slot;
  }
  return padding;
}

}  // namespace

GradientLayout::GradientLayout(const FlatLayout& layout, const GradientFormat& format)
    : format_(format), begins_(static_cast<size_t>(layout.chunk_count()) + 1) {
  for (int32_t chunk = 0; chunk < layout.chunk_count(); ++chunk) {
    const bool compressed = layout.ChunkKind(chunk) == TensorKind::kWeight;
    if (compressed) compressed_chunks_ = chunk + 1;  // statistics lie behind all weights
    const FlatRange range = layout.ChunkRange(chunk);
    begins_[chunk + 1] = begins_[chunk] + EncodedWords(compressed ? format_ : exact_, range.size);
    if (compressed && format_.fills_padding()) padding_.push_back(PaddingOf(layout, range));
  }
}

void ClearPadding(const std::vector<FlatRange>& padding, absl::Span<float> chunk) {
  for (const FlatRange& gap : padding) {
    std::fill_n(chunk.begin() + gap.offset, gap.size, 0.0f);
  }
}

std::vector<ChunkRun> GradientLayout::FramesOf(const ChunkRun& run,
                                               int64_t max_payload_bytes) const {
  std::vector<ChunkRun> frames;
  int64_t bytes = 0;
  for (int32_t chunk = run.first_chunk; chunk < run.end(); ++chunk) {
    const int64_t size = Words(chunk) * static_cast<int64_t>(sizeof(float));
    CAPSTAN_CHECK(size <= max_payload_bytes);
    if (frames.empty() || bytes + size > max_payload_bytes ||
        frames.back().chunk_count == kMaxFrameChunks) {
      frames.push_back({chunk, 0});
      bytes = 0;
    }
    ++frames.back().chunk_count;
    bytes += size;
  }
  return frames;
}

}  // namespace capstan::training
