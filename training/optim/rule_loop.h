// Runs the rule for one weight as a loop over many, in a form that the compiler vectorises. For the
// sources of rules, which are built with -O3 -fno-math-errno (a square root is then one
// instruction).
//
// Threads: stateless.
#ifndef CAPSTAN_TRAINING_OPTIM_RULE_LOOP_H_
#define CAPSTAN_TRAINING_OPTIM_RULE_LOOP_H_

#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "training/optim/rule_numbers.h"

namespace capstan::training {

struct IeeeRoot {
  float operator()(float x) const { return std::sqrt(x); }
};

// `update(w, g, state)` returns the new weight. `state` has kStates floats per weight. Otherwise as
// Optimizer::Apply.
template <int kStates, class Update>
void RunRule(float* out, const float* in, const float* gradient, float* state, size_t n,
             const Update update) {
  const float* __restrict g = gradient;
  float* __restrict s = state;
  if (out == in) {
    float* __restrict w = out;
    for (size_t i = 0; i < n; ++i) w[i] = update(w[i], g[i], s + i * kStates);
  } else {
    float* __restrict to = out;
    const float* __restrict from = in;
    for (size_t i = 0; i < n; ++i) to[i] = update(from[i], g[i], s + i * kStates);
  }
}

// `constants` as numbers.
template <class Constants>
RuleNumbers NumbersOf(RuleForm form, bool decay, const Constants& constants) {
  static_assert(std::is_trivially_copyable_v<Constants> &&
                sizeof(Constants) <= sizeof RuleNumbers().numbers);
  RuleNumbers rule;
  rule.form = form;
  rule.decay = decay;
  std::memcpy(rule.numbers, &constants, sizeof constants);
  return rule;
}

// InvalidArgument, naming option, value and limit.
inline absl::Status WantFraction(absl::string_view name, double value) {
  if (value >= 0 && value < 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": got ", value, ", want a number in [0, 1)"));
}
inline absl::Status WantDecay(double value) {
  if (value >= 0 && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("weight_decay: got ", value, ", want a finite number from 0 on"));
}
inline absl::Status WantBetween(absl::string_view name, double value, double least, double most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": got ", value, ", want a number in [", least, ", ", most, "]"));
}
// Epsilon is above 0 in float32 too, so that padding, where everything is 0, is not divided by 0.
inline absl::Status WantEpsilon(double value) { return WantBetween("epsilon", value, 1e-30, 1000); }

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_RULE_LOOP_H_
