#include "training/random/philox.h"

#include <cmath>

#include "services/check/check.h"
#include "training/math/portable_math.h"
#include "training/random/philox_rule.h"

namespace capstan::training {
namespace {

__extension__ typedef unsigned __int128 uint128;

constexpr double kTwoPi = 6.283185307179586476925286766559;

uint64_t Join(uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; }

uint64_t SplitMix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

PhiloxBlock Philox4x32(const PhiloxCounter& counter, const PhiloxKey& key) {
  uint32_t x[4] = {counter[0], counter[1], counter[2], counter[3]};
  PhiloxRounds(x, key[0], key[1]);
  return {x[0], x[1], x[2], x[3]};
}

PhiloxKey MakePhiloxKey(uint64_t seed, Purpose purpose) {
  const uint64_t mixed =
      SplitMix64(seed + static_cast<uint64_t>(purpose) * uint64_t{0x9E3779B97F4A7C15u});
  return {static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)};
}

std::array<double, 2> ToNormals(const PhiloxBlock& block) {
  const double u = (static_cast<double>(Join(block[0], block[1]) >> 11) + 1.0) / (0x1p53 + 1.0);
  const double v = static_cast<double>(Join(block[2], block[3]) >> 11) * 0x1p-53;
  const double radius = std::sqrt(-2.0 * PortableLog(u));
  const SineAndCosine angle = PortableSinCos(kTwoPi * v);
  return {radius * angle.cosine, radius * angle.sine};
}

uint64_t Philox::Uniform64(const PhiloxCounter& counter) const {
  const PhiloxBlock block = Block(counter);
  return Join(block[0], block[1]);
}

uint64_t Philox::Bounded(const PhiloxCounter& counter, uint64_t bound) const {
  CAPSTAN_CHECK(bound >= 1);
  const uint64_t threshold = (0 - bound) % bound;  // 2^64 mod bound
  PhiloxCounter attempt = counter;
  for (;; ++attempt[3]) {
    const PhiloxBlock block = Block(attempt);
    for (const uint64_t draw : {Join(block[0], block[1]), Join(block[2], block[3])}) {
      const uint128 product = static_cast<uint128>(draw) * bound;
      if (static_cast<uint64_t>(product) >= threshold) return static_cast<uint64_t>(product >> 64);
    }
  }
}

}  // namespace capstan::training
