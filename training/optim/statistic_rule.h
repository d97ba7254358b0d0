// The update of one running statistic (rule R3): for the loops of the host and the kernels of cards
// alike, so that both give the same bits. Whoever compiles it must not contract a product and a sum
// into one rounding (-ffp-contract=off, --fmad=false). C++17 and nothing included: nvcc reads it too.
//
// Threads: stateless.
#ifndef CAPSTAN_TRAINING_OPTIM_STATISTIC_RULE_H_
#define CAPSTAN_TRAINING_OPTIM_STATISTIC_RULE_H_

namespace capstan::training {

// The new running value. `average` is that of the step over its samples; `momentum` is rounded once
// from the tensor's.
constexpr float StatisticUpdate(float running, float average, float momentum) {
  return running + momentum * (average - running);
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_STATISTIC_RULE_H_
