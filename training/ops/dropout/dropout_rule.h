// The random numbers of Dropout (dropout.h), for the host and for the kernels of cards. C++17
// without other includes, because nvcc reads it too.
//
// Threads: stateless.
#ifndef CAPSTAN_TRAINING_OPS_DROPOUT_DROPOUT_RULE_H_
#define CAPSTAN_TRAINING_OPS_DROPOUT_DROPOUT_RULE_H_

#include <cstdint>

namespace capstan::training {

// The counter of elements 4 * block to 4 * block + 3.
constexpr void SetDropoutCounter(int64_t block, int64_t id, uint32_t epoch, int node,
                                 uint32_t (&counter)[4]) {
  const auto bits = static_cast<uint64_t>(id);
  counter[0] = static_cast<uint32_t>(block);
  counter[1] = static_cast<uint32_t>(bits);
  counter[2] = epoch;
  counter[3] = (static_cast<uint32_t>(node) & 0xffff) | static_cast<uint32_t>(bits >> 32) << 16;
}

// Whether an element with this word of the block is kept.
constexpr bool DropoutKeeps(uint32_t word, uint32_t threshold) { return (word >> 8) >= threshold; }

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_DROPOUT_DROPOUT_RULE_H_
