// fp16, bf16 and int8. Built with -O3 -fno-trapping-math. The loops are plain, so that the compiler
// vectorises them.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "training/compress/encodings.h"
#include "training/compress/half.h"

namespace capstan::training::compress {
namespace {

// Through an array of 16-bit numbers, because the compiler vectorises loops from one array to
// another.
constexpr size_t kTile = 64;

template <uint16_t (*kTo)(float)>
void EncodeHalves(absl::Span<const float> in, absl::Span<float> out) {
  std::array<uint16_t, kTile> tile;
  size_t at = 0;
  for (; at + kTile <= in.size(); at += kTile) {
    const float* const from = &in[at];
    for (size_t i = 0; i < kTile; ++i) tile[i] = kTo(from[i]);
    std::memcpy(&out[at / 2], tile.data(), sizeof tile);
  }
  if (at == in.size()) return;
  tile = {};
  for (size_t i = 0; at + i < in.size(); ++i) tile[i] = kTo(in[at + i]);
  std::memcpy(&out[at / 2], tile.data(), (in.size() - at + 1) / 2 * sizeof(float));
}

template <float (*kFrom)(uint16_t)>
void DecodeHalves(absl::Span<const float> encoded, absl::Span<float> out) {
  std::array<uint16_t, kTile> tile;
  size_t at = 0;
  for (; at + kTile <= out.size(); at += kTile) {
    std::memcpy(tile.data(), &encoded[at / 2], sizeof tile);
    float* const to = &out[at];
    for (size_t i = 0; i < kTile; ++i) to[i] = kFrom(tile[i]);
  }
  if (at == out.size()) return;
  std::memcpy(tile.data(), &encoded[at / 2], (out.size() - at + 1) / 2 * sizeof(float));
  for (size_t i = 0; at + i < out.size(); ++i) out[at + i] = kFrom(tile[i]);
}

constexpr uint32_t kInfinity = 0x7F800000;
// The largest scale whose 127-fold is finite. The largest floats / 127 would be rounded up past it.
constexpr float kMostScale = 8454659 * 0x1p98f;

// The bits of the largest magnitude. NaN is larger than infinity.
uint32_t LargestMagnitude(absl::Span<const float> in) {
  int32_t largest = 0;
  for (const float value : in) {
    const auto bits = static_cast<int32_t>(std::bit_cast<uint32_t>(value) & 0x7FFFFFFF);
    largest = bits > largest ? bits : largest;
  }
  return static_cast<uint32_t>(largest);
}

// x / scale as whole numbers. Adding 1.5 * 2^23 rounds to nearest even and leaves them in the low
// bits.
void Quantise(const float* in, size_t count, float scale, int8_t* out) {
  constexpr float kRound = 12582912.0f;
  for (size_t i = 0; i < count; ++i) {
    float value = in[i] / scale;
    value = value > 127.0f ? 127.0f : value;
    value = value < -127.0f ? -127.0f : value;
    out[i] = static_cast<int8_t>(std::bit_cast<int32_t>(value + kRound) -
                                 std::bit_cast<int32_t>(kRound));
  }
}

}  // namespace

void EncodeBinary16(absl::Span<const float> in, absl::Span<float> out) {
  EncodeHalves<ToBinary16>(in, out);
}
void DecodeBinary16(absl::Span<const float> encoded, absl::Span<float> out) {
  DecodeHalves<FromBinary16>(encoded, out);
}
void EncodeBFloat16(absl::Span<const float> in, absl::Span<float> out) {
  EncodeHalves<ToBFloat16>(in, out);
}
void DecodeBFloat16(absl::Span<const float> encoded, absl::Span<float> out) {
  DecodeHalves<FromBFloat16>(encoded, out);
}

void EncodeInt8(absl::Span<const float> in, absl::Span<float> out) {
  float* to = out.data();
  for (size_t at = 0; at < in.size(); at += kBlock) {
    const absl::Span<const float> block = in.subspan(at, kBlock);
    const uint32_t largest = LargestMagnitude(block);
    std::array<int8_t, kBlock> quantised = {};
    float scale = std::numeric_limits<float>::quiet_NaN();
    if (largest < kInfinity) {
      scale = std::min(std::bit_cast<float>(largest) / 127.0f, kMostScale);
      if (scale > 0) Quantise(block.data(), block.size(), scale, quantised.data());
    }
    PutWord(to++, std::bit_cast<uint32_t>(scale));
    const size_t words = (block.size() + 3) / 4;
    std::memcpy(to, quantised.data(), words * sizeof(float));
    to += words;
  }
}

void DecodeInt8(absl::Span<const float> encoded, absl::Span<float> out) {
  const float* from = encoded.data();
  for (size_t at = 0; at < out.size(); at += kBlock) {
    const absl::Span<float> block = out.subspan(at, kBlock);
    const float scale = std::bit_cast<float>(WordAt(from++));
    std::array<int8_t, kBlock> quantised;
    const size_t words = (block.size() + 3) / 4;
    std::memcpy(quantised.data(), from, words * sizeof(float));
    from += words;
    for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<float>(quantised[i]) * scale;
  }
}

}  // namespace capstan::training::compress
