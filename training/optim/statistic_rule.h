// The update of one running statistic (rule R3). For the loops of the host and for the kernels of
// cards, so that both give the same bits. Its compiler must not contract a product and a sum into
// one rounding (-ffp-contract=off, --fmad=false). C++17 without includes, because nvcc reads it
// too.
//
// Threads: stateless.
#ifndef CAPSTAN_TRAINING_OPTIM_STATISTIC_RULE_H_
#define CAPSTAN_TRAINING_OPTIM_STATISTIC_RULE_H_

namespace capstan::training {

// Returns the new running value. `average` is the average of the step over its samples. `momentum`
// is the tensor's, rounded once, and the only number of the rule that crosses the plug-in ABI.
constexpr float StatisticUpdate(float running, float average, float momentum) {
  return running + momentum * (average - running);
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_STATISTIC_RULE_H_
