// top_k.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "services/check/check.h"
#include "training/compress/encodings.h"

namespace capstan::training::compress {
namespace {

uint32_t MagnitudeOf(float value) { return std::bit_cast<uint32_t>(value) & 0x7FFFFFFF; }

// The `kept` indices of the largest magnitudes, ascending. Counts magnitudes by their leading bits, so
// that only those that share them with the smallest kept one must be sorted.
std::vector<uint32_t> LargestOf(absl::Span<const float> values, size_t kept) {
  constexpr int kLowBits = 20;
  std::array<uint32_t, 1 << (31 - kLowBits)> counts = {};
  for (const float value : values) ++counts[MagnitudeOf(value) >> kLowBits];
  uint32_t border = counts.size() - 1;
  size_t above = 0;  // in the groups above `border`
  while (above + counts[border] < kept) above += counts[border--];
  std::vector<uint32_t> largest;
  largest.reserve(kept);
  std::vector<uint64_t> at_border;  // by magnitude, then by falling index
  at_border.reserve(counts[border]);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t magnitude = MagnitudeOf(values[i]);
    if (magnitude >> kLowBits > border) {
      largest.push_back(static_cast<uint32_t>(i));
    } else if (magnitude >> kLowBits == border) {
      at_border.push_back(uint64_t{magnitude} << 32 | ~static_cast<uint32_t>(i));
    }
  }
  const auto rest = static_cast<int64_t>(kept - above);
  std::nth_element(at_border.begin(), at_border.begin() + (rest - 1), at_border.end(),
                   std::greater<>());
  for (int64_t i = 0; i < rest; ++i) largest.push_back(~static_cast<uint32_t>(at_border[i]));
  std::sort(largest.begin(), largest.end());
  return largest;
}

}  // namespace

int64_t KeptOf(double ratio, int64_t floats) {
  const double kept = std::ceil(ratio * static_cast<double>(floats));
  return std::clamp<int64_t>(static_cast<int64_t>(kept), 1, floats);
}

void EncodeTopK(float loss_scale, absl::Span<float> left, absl::Span<float> out) {
  const size_t kept = out.size() / 2;
  const std::vector<uint32_t> largest = LargestOf(left, kept);
  for (size_t i = 0; i < kept; ++i) {
    float& value = left[largest[i]];
    PutWord(&out[i], largest[i]);
    out[kept + i] = value * loss_scale;
    value = 0;
  }
}

bool IsTopK(absl::Span<const float> encoded, int64_t floats) {
  int64_t before = -1;
  for (size_t i = 0; i < encoded.size() / 2; ++i) {
    const int64_t index = WordAt(&encoded[i]);
    if (index <= before || index >= floats) return false;
    before = index;
  }
  return true;
}

void DecodeTopK(absl::Span<const float> encoded, absl::Span<float> out) {
  const size_t kept = encoded.size() / 2;
  std::fill(out.begin(), out.end(), 0.0f);
  for (size_t i = 0; i < kept; ++i) {
    const uint32_t index = WordAt(&encoded[i]);
    if (index < out.size()) out[index] = encoded[kept + i];
  }
}

}  // namespace capstan::training::compress
