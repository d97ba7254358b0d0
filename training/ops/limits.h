// Limits of networks that data sets have, too.
#ifndef CAPSTAN_TRAINING_OPS_LIMITS_H_
#define CAPSTAN_TRAINING_OPS_LIMITS_H_

#include <cstdint>

namespace capstan::training {

// Most outputs of a network: its classes, or the numbers of a sample's target.
inline constexpr int64_t kMaxOutputs = 1'000'000;

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_LIMITS_H_
