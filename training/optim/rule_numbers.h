// A step of an update rule as plain numbers, and the update of one weight by them. For devices that
// update their weights themselves: the host makes the numbers (Optimizer::Numbers), the device
// needs nothing else. Both compile the formulas of the rules, so both give the same bits. The
// compiler must not contract a product and a sum into one rounding (-ffp-contract=off,
// --fmad=false). C++17, because nvcc reads it too.
//
// Threads: values and pure functions.
#ifndef CAPSTAN_TRAINING_OPTIM_RULE_NUMBERS_H_
#define CAPSTAN_TRAINING_OPTIM_RULE_NUMBERS_H_

#include "training/optim/adagrad_rule.h"
#include "training/optim/adam_rule.h"
#include "training/optim/ftrl_rule.h"
#include "training/optim/rmsprop_rule.h"
#include "training/optim/sgd_rule.h"
#include "training/optim/statistic_rule.h"

namespace capstan::training {

// Which formula. The values cross the interface of plug-ins (gpu_worker/engine/plugin/abi.h).
enum class RuleForm : int {
  kKeep = 0,  // changes neither weight nor state
  kSgd = 1,
  kMomentum = 2,
  kNesterov = 3,
  kAdam = 4,
  kAdamW = 5,
  kRmsprop = 6,
  kRmspropCentered = 7,
  kRmspropMomentum = 8,
  kRmspropCenteredMomentum = 9,
  kAdagrad = 10,
  kFtrl = 11,
  kStatistic = 12,  // rule R3
};
inline constexpr int kRuleForms = 13;

inline constexpr int kMostRuleNumbers = 9;
inline constexpr int kMostRuleStates = 3;  // StatesOf a form, at most

struct RuleNumbers {
  RuleForm form = RuleForm::kKeep;
  bool decay = false;  // of a form with weight decay; kFtrl has it in its numbers
  // The fields of the rule's constants, in their order: SgdConstants for kSgd, and so on. kStatistic
  // has the momentum of the tensor.
  float numbers[kMostRuleNumbers] = {};
};

// Floats of state per weight that a form reads and writes.
constexpr int StatesOf(RuleForm form) {
  switch (form) {
    case RuleForm::kMomentum:
    case RuleForm::kNesterov:
    case RuleForm::kRmsprop:
    case RuleForm::kAdagrad:
      return 1;
    case RuleForm::kAdam:
    case RuleForm::kAdamW:
    case RuleForm::kRmspropCentered:
    case RuleForm::kRmspropMomentum:
    case RuleForm::kFtrl:
      return 2;
    case RuleForm::kRmspropCenteredMomentum:
      return 3;
    case RuleForm::kKeep:
    case RuleForm::kSgd:
    case RuleForm::kStatistic:
      return 0;
  }
  return 0;
}

template <bool kMomentum, bool kNesterov>
constexpr float SgdByNumbers(const RuleNumbers& rule, float w, float g, float* state) {
  const float* const n = rule.numbers;
  const SgdConstants c = {n[0], n[1], n[2]};
  float none = 0;
  float& v = kMomentum ? *state : none;
  return rule.decay ? SgdUpdate<true, kMomentum, kNesterov>(w, g, v, c)
                    : SgdUpdate<false, kMomentum, kNesterov>(w, g, v, c);
}

template <AdamDecay kDecay, class Root>
constexpr float AdamByNumbers(const RuleNumbers& rule, float w, float g, float* state, Root root) {
  const float* const n = rule.numbers;
  const AdamConstants c = {n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8]};
  return rule.decay ? AdamUpdate<kDecay>(w, g, state, c, root)
                    : AdamUpdate<AdamDecay::kNone>(w, g, state, c, root);
}

template <bool kCentered, bool kMomentum, class Root>
constexpr float RmspropByNumbers(const RuleNumbers& rule, float w, float g, float* state,
                                 Root root) {
  const float* const n = rule.numbers;
  const RmspropConstants c = {n[0], n[1], n[2], n[3], n[4], n[5]};
  return rule.decay ? RmspropUpdate<true, kCentered, kMomentum>(w, g, state, c, root)
                    : RmspropUpdate<false, kCentered, kMomentum>(w, g, state, c, root);
}

// Returns the new weight and changes `state`, which has StatesOf(rule.form) floats. `g` is the
// gradient, or for kStatistic the average of the step. `root` is the square root rounded as IEEE
// 754 says.
template <class Root>
constexpr float UpdateByNumbers(const RuleNumbers& rule, float w, float g, float* state,
                                Root root) {
  const float* const n = rule.numbers;
  switch (rule.form) {
    case RuleForm::kKeep:
      return w;
    case RuleForm::kSgd:
      return SgdByNumbers<false, false>(rule, w, g, state);
    case RuleForm::kMomentum:
      return SgdByNumbers<true, false>(rule, w, g, state);
    case RuleForm::kNesterov:
      return SgdByNumbers<true, true>(rule, w, g, state);
    case RuleForm::kAdam:
      return AdamByNumbers<AdamDecay::kGradient>(rule, w, g, state, root);
    case RuleForm::kAdamW:
      return AdamByNumbers<AdamDecay::kDecoupled>(rule, w, g, state, root);
    case RuleForm::kRmsprop:
      return RmspropByNumbers<false, false>(rule, w, g, state, root);
    case RuleForm::kRmspropCentered:
      return RmspropByNumbers<true, false>(rule, w, g, state, root);
    case RuleForm::kRmspropMomentum:
      return RmspropByNumbers<false, true>(rule, w, g, state, root);
    case RuleForm::kRmspropCenteredMomentum:
      return RmspropByNumbers<true, true>(rule, w, g, state, root);
    case RuleForm::kAdagrad: {
      const AdagradConstants c = {n[0], n[1], n[2]};
      return rule.decay ? AdagradUpdate<true>(w, g, state, c, root)
                        : AdagradUpdate<false>(w, g, state, c, root);
    }
    case RuleForm::kFtrl: {
      const FtrlConstants c = {n[0], n[1], n[2], n[3]};
      return FtrlUpdate(w, g, state, c, root);
    }
    case RuleForm::kStatistic:
      return StatisticUpdate(w, g, n[0]);
  }
  return w;
}

// One number of a sum as a gradient: times `scale`, then clipped to [-clip, clip] unless `clip` is
// 0. A NaN passes, as on the host.
constexpr float GradientOf(float sum, float scale, float clip) {
  float g = sum * scale;
  if (clip > 0) {
    g = g < -clip ? -clip : g;
    g = clip < g ? clip : g;
  }
  return g;
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_RULE_NUMBERS_H_
