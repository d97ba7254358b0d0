// 2bit and 1bit. Built with -O3, so that the compiler vectorises the loops.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "training/compress/encodings.h"

namespace capstan::training::compress {
namespace {

constexpr size_t kPartialSums = 16;
// The numbers in a word: constants, so that the compiler unrolls the loops over whole words.
using TwoBitCount = std::integral_constant<size_t, 16>;
using OneBitCount = std::integral_constant<size_t, 32>;

constexpr uint32_t kSign = 0x80000000;
constexpr std::array<uint32_t, 32> kBit = [] {
  std::array<uint32_t, 32> bits = {};
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = uint32_t{1} << i;
  return bits;
}();

// All bits, or none. The signs of a gradient cannot be predicted, so there are no branches.
uint32_t MaskOf(bool condition) { return -static_cast<uint32_t>(condition); }

// Of the floats from `begin` up to `end`, those that are no padding.
int64_t NumbersIn(int64_t begin, int64_t end, absl::Span<const FlatRange> padding) {
  int64_t numbers = end - begin;
  for (const FlatRange& gap : padding) {
    numbers -= std::max<int64_t>(0, std::min(end, gap.end()) - std::max(begin, gap.offset));
  }
  return numbers;
}

// In a fixed order, which a vector unit can follow. `numbers`: those that are no padding; padding
// is zero.
float MeanMagnitude(absl::Span<const float> values, int64_t numbers) {
  if (numbers == 0) return 0;
  std::array<double, kPartialSums> sums = {};
  const size_t whole = values.size() / kPartialSums * kPartialSums;
  for (size_t at = 0; at < whole; at += kPartialSums) {
    for (size_t i = 0; i < kPartialSums; ++i) sums[i] += std::fabs(values[at + i]);
  }
  for (size_t i = 0; whole + i < values.size(); ++i) sums[i] += std::fabs(values[whole + i]);
  for (size_t half = kPartialSums / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return static_cast<float>(sums[0] / static_cast<double>(numbers));
}

template <class Count>
uint32_t TwoBitWord(float threshold, Count count, float* left) {
  const auto t = std::bit_cast<uint32_t>(threshold);
  uint32_t word = 0;
  for (size_t i = 0; i < count; ++i) {
    const float value = left[i];
    const uint32_t plus = MaskOf(value >= threshold);
    const uint32_t minus = MaskOf(value <= -threshold) & ~plus;  // both if t is 0
    word |= (plus & kBit[2 * i]) | (minus & kBit[2 * i + 1]);
    left[i] = value - std::bit_cast<float>(((plus | minus) & t) | (minus & kSign));
  }
  return word;
}

// `mean` is not negative.
template <class Count>
uint32_t OneBitWord(float mean, Count count, float* left) {
  const auto bits = std::bit_cast<uint32_t>(mean);
  uint32_t word = 0;
  for (size_t i = 0; i < count; ++i) {
    const float value = left[i];
    const uint32_t negative = MaskOf(value < 0);
    word |= negative & kBit[i];
    left[i] = value - std::bit_cast<float>(bits | (negative & kSign));
  }
  return word;
}

template <class Count>
void ReadTwoBits(uint32_t word, const std::array<float, 4>& values, Count count, float* out) {
  for (size_t i = 0; i < count; ++i) out[i] = values[word >> (2 * i) & 3];
}

template <class Count>
void ReadOneBits(uint32_t word, float mean, Count count, float* out) {
  const auto bits = std::bit_cast<uint32_t>(mean);
  for (size_t i = 0; i < count; ++i) {
    out[i] = std::bit_cast<float>(bits ^ (MaskOf((word & kBit[i]) != 0) & kSign));
  }
}

// Calls `body(at, count)` for the numbers of each word. `count` is Count except in the last word.
template <class Count, class Body>
void ForWords(Count whole, size_t numbers, Body body) {
  size_t at = 0;
  for (; at + whole <= numbers; at += whole) body(at, whole);
  if (at < numbers) body(at, numbers - at);
}

}  // namespace

void EncodeNothing(absl::Span<float> out) {
  std::fill(out.begin(), out.end(), 0.0f);
  out[0] = std::numeric_limits<float>::quiet_NaN();
}

void EncodeTwoBit(float threshold, float loss_scale, absl::Span<float> left,
                  absl::Span<float> out) {
  out[0] = threshold * loss_scale;
  float* to = &out[1];
  ForWords(TwoBitCount(), left.size(),
           [&](size_t at, auto count) { PutWord(to++, TwoBitWord(threshold, count, &left[at])); });
}

void DecodeTwoBit(absl::Span<const float> encoded, absl::Span<float> out) {
  const float t = encoded[0];
  // 3 is never sent. 0 is NaN if t is.
  const std::array<float, 4> values = {0.0f * t, t, -t, std::numeric_limits<float>::quiet_NaN()};
  const float* from = &encoded[1];
  ForWords(TwoBitCount(), out.size(),
           [&](size_t at, auto count) { ReadTwoBits(WordAt(from++), values, count, &out[at]); });
}

void EncodeOneBit(float loss_scale, absl::Span<const FlatRange> padding, absl::Span<float> left,
                  absl::Span<float> out) {
  float* to = out.data();
  for (size_t begin = 0; begin < left.size(); begin += kBlock) {
    const absl::Span<float> block = left.subspan(begin, kBlock);
    const auto first = static_cast<int64_t>(begin);
    const float mean =
        MeanMagnitude(block, NumbersIn(first, first + static_cast<int64_t>(block.size()), padding));
    *to++ = mean * loss_scale;
    ForWords(OneBitCount(), block.size(),
             [&](size_t at, auto count) { PutWord(to++, OneBitWord(mean, count, &block[at])); });
  }
}

void DecodeOneBit(absl::Span<const float> encoded, absl::Span<float> out) {
  const float* from = encoded.data();
  for (size_t begin = 0; begin < out.size(); begin += kBlock) {
    const absl::Span<float> block = out.subspan(begin, kBlock);
    const float mean = *from++;
    ForWords(OneBitCount(), block.size(),
             [&](size_t at, auto count) { ReadOneBits(WordAt(from++), mean, count, &block[at]); });
  }
}

}  // namespace capstan::training::compress
