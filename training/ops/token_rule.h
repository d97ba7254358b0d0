// How numbers are read as tokens, for the host and for the kernels of cards. C++17 without other
// includes, because nvcc reads it too.
//
// Threads: stateless.
#ifndef CAPSTAN_TRAINING_OPS_TOKEN_RULE_H_
#define CAPSTAN_TRAINING_OPS_TOKEN_RULE_H_

#include <cstdint>

namespace capstan::training {

// Gather: the row of an index, cut towards zero; a negative one counts from the end. -1: there is
// no such row, or the index is a NaN.
constexpr int64_t RowOfIndex(double index, int64_t rows) {
  const auto end = static_cast<double>(rows);
  if (!(index > -end - 1 && index < end)) return -1;
  const auto whole = static_cast<int64_t>(index);  // towards zero
  return whole < 0 ? whole + rows : whole;
}

// SequenceCrossEntropyLoss: the class of a token, cut towards zero. -1: there is none, so its
// position does not count.
constexpr int64_t ClassOfToken(double token, int64_t classes) {
  if (!(token > -1 && token < static_cast<double>(classes))) return -1;
  return static_cast<int64_t>(token);  // towards zero
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_TOKEN_RULE_H_
