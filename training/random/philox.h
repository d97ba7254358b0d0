// Random numbers without a state: Philox4x32-10, a pure function of (seed, purpose, counter) (rule
// R4). It does not depend on lane, step or thread, so any process can draw any number again.
//
// The key is SplitMix64(seed + purpose * 0x9E3779B97F4A7C15). The caller lays out the 128-bit
// counter and documents the layout where it draws.
//
// Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"
// (doi:10.1145/2063384.2063405); SplitMix64: Steele, Lea, Flood 2014.
// Threads: stateless.
#ifndef CAPSTAN_TRAINING_RANDOM_PHILOX_H_
#define CAPSTAN_TRAINING_RANDOM_PHILOX_H_

#include <array>
#include <cstdint>

namespace capstan::training {

// Part of the key. The numbers never change; new ones go at the end.
enum class Purpose : uint32_t {
  kShuffle = 1,
  kInit = 2,
  kDropout = 3,
  kAugment = 4,
  kSynthetic = 5,
};

using PhiloxKey = std::array<uint32_t, 2>;
using PhiloxBlock = std::array<uint32_t, 4>;    // 128 random bits
using PhiloxCounter = std::array<uint32_t, 4>;  // word 0 is the lowest

// The bare function of the paper: ten rounds.
PhiloxBlock Philox4x32(const PhiloxCounter& counter, const PhiloxKey& key);

PhiloxKey MakePhiloxKey(uint64_t seed, Purpose purpose);

// In [0, 1), from the upper 24 bits, so every value is a multiple of 2^-24.
inline float ToUniform(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

// Two independent standard normals from four words, by Box-Muller in double. Let a and b be the
// upper 53 bits of the words (0, 1) and (2, 3), u = (a + 1) / (2^53 + 1) in (0, 1] and v = b / 2^53
// in [0, 1). The result is sqrt(-2 ln u) * (cos 2 pi v, sin 2 pi v). The bits are the same
// everywhere (portable_math.h).
std::array<double, 2> ToNormals(const PhiloxBlock& block);

// The same functions with key and counter combined.
class Philox {
 public:
  Philox(uint64_t seed, Purpose purpose) : key_(MakePhiloxKey(seed, purpose)) {}

  PhiloxBlock Block(const PhiloxCounter& counter) const { return Philox4x32(counter, key_); }
  // Each uses the first words of the block of `counter`.
  float Uniform(const PhiloxCounter& counter) const { return ToUniform(Block(counter)[0]); }
  uint64_t Uniform64(const PhiloxCounter& counter) const;
  std::array<double, 2> Normals(const PhiloxCounter& counter) const {
    return ToNormals(Block(counter));
  }
  // In [0, bound), every value equally likely (Lemire 2019, arXiv:1805.10941, with rejection).
  // bound >= 1. A rejected draw (probability below bound / 2^64) continues with word 3 of the
  // counter plus one, so callers must count in words 0 to 2.
  uint64_t Bounded(const PhiloxCounter& counter, uint64_t bound) const;

 private:
  PhiloxKey key_;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_RANDOM_PHILOX_H_
