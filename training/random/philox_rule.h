// The rounds of Philox4x32-10 (philox.h), for the host and for the kernels of cards. C++17 without
// other includes, because nvcc reads it too.
//
// Threads: stateless.
#ifndef CAPSTAN_TRAINING_RANDOM_PHILOX_RULE_H_
#define CAPSTAN_TRAINING_RANDOM_PHILOX_RULE_H_

#include <cstdint>

namespace capstan::training {

// `x` is the counter, word 0 the lowest, and becomes the block.
constexpr void PhiloxRounds(uint32_t (&x)[4], uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * x[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * x[2];
    const uint32_t word0 = static_cast<uint32_t>(product1 >> 32) ^ x[1] ^ key0;
    const uint32_t word2 = static_cast<uint32_t>(product0 >> 32) ^ x[3] ^ key1;
    x[0] = word0;
    x[1] = static_cast<uint32_t>(product1);
    x[2] = word2;
    x[3] = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_RANDOM_PHILOX_RULE_H_
