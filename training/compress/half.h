// Conversions between float and the 16-bit formats binary16 and bfloat16, without branches, so that
// loops over them are vectorised. Every processor gives the same bits.
// Rounded to nearest even. NaN stays NaN.
//
// Threads: pure functions.
#ifndef CAPSTAN_TRAINING_COMPRESS_HALF_H_
#define CAPSTAN_TRAINING_COMPRESS_HALF_H_

#include <bit>
#include <cstdint>

namespace capstan::training {

// Numbers from 65520 on become infinite. Subnormal results are kept.
inline uint16_t ToBinary16(float value) {
  constexpr uint32_t kInfinity = 0x7F800000;
  constexpr uint32_t kTooLarge = uint32_t{127 + 16} << 23;       // 2^16
  constexpr uint32_t kSmallest = uint32_t{127 - 14} << 23;       // the smallest normal result
  constexpr uint32_t kUlpOfSubnormal = uint32_t{127 - 1} << 23;  // adding it rounds to 2^-24
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits & 0x80000000;
  const uint32_t magnitude = bits ^ sign;
  const uint32_t special = magnitude > kInfinity ? 0x7E00 : 0x7C00;
  const float rounded = std::bit_cast<float>(magnitude) + std::bit_cast<float>(kUlpOfSubnormal);
  const uint32_t subnormal = std::bit_cast<uint32_t>(rounded) - kUlpOfSubnormal;
  // Moves the exponent, and rounds at bit 13.
  const uint32_t normal =
      (magnitude - (uint32_t{127 - 15} << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
  const uint32_t small_or_normal = magnitude < kSmallest ? subnormal : normal;
  const uint32_t half = magnitude >= kTooLarge ? special : small_or_normal;
  return static_cast<uint16_t>(half | (sign >> 16));
}

inline float FromBinary16(uint16_t half) {
  constexpr uint32_t kExponent = 0x7C00 << 13;
  constexpr uint32_t kSmallest = uint32_t{127 - 14} << 23;
  const uint32_t shifted = uint32_t{half & 0x7FFFu} << 13;
  const uint32_t exponent = shifted & kExponent;
  const uint32_t normal = shifted + (uint32_t{127 - 15} << 23);
  const uint32_t special = normal + (uint32_t{128 - 16} << 23);
  const float as_normal = std::bit_cast<float>(normal + (uint32_t{1} << 23));
  const uint32_t subnormal = std::bit_cast<uint32_t>(as_normal - std::bit_cast<float>(kSmallest));
  const uint32_t finite = exponent == 0 ? subnormal : normal;
  const uint32_t magnitude = exponent == kExponent ? special : finite;
  return std::bit_cast<float>(magnitude | (uint32_t{half & 0x8000u} << 16));
}

inline uint16_t ToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? quiet : rounded);
}

inline float FromBFloat16(uint16_t half) { return std::bit_cast<float>(uint32_t{half} << 16); }

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_COMPRESS_HALF_H_
