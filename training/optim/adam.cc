#include "training/optim/adam.h"

#include <cmath>

#include "services/check/check.h"
#include "training/optim/rule_loop.h"

// This file is built with -O3 -fno-math-errno, as rule_loop.h says.
namespace capstan::training {
namespace {

template <AdamDecay kDecay>
void RunAdam(float* out, const float* in, const float* gradient, float* state, size_t n,
             const AdamConstants& c) {
  RunRule<2>(out, in, gradient, state, n, [c](float w, float g, float* s) {
    return AdamUpdate<kDecay>(w, g, s, c, IeeeRoot());
  });
}

}  // namespace

absl::StatusOr<Adam> Adam::Create(const AdamOptions& options, const UpdateOptions& update) {
  for (const absl::Status& status :
       {WantFraction("beta1", options.beta1), WantFraction("beta2", options.beta2),
        WantEpsilon(options.epsilon), WantDecay(options.weight_decay)}) {
    if (!status.ok()) return status;
  }
  return Adam(options, update);
}

AdamConstants Adam::Constants(const RuleStep& step) const {
  CAPSTAN_CHECK(step.number >= 1);
  const AdamOptions& o = options_;
  AdamConstants c;
  c.beta1 = static_cast<float>(o.beta1);
  c.rest1 = static_cast<float>(1 - o.beta1);
  c.beta2 = static_cast<float>(o.beta2);
  c.rest2 = static_cast<float>(1 - o.beta2);
  c.epsilon = static_cast<float>(o.epsilon);
  c.weight_decay = static_cast<float>(o.weight_decay);
  c.keep = static_cast<float>(1 - step.learning_rate * o.weight_decay);
  c.step_size =
      static_cast<float>(step.learning_rate / (1 - PowerBySquaring(o.beta1, step.number)));
  c.root_correction = static_cast<float>(std::sqrt(1 - PowerBySquaring(o.beta2, step.number)));
  return c;
}

std::optional<RuleNumbers> Adam::Numbers(const RuleStep& step) const {
  return NumbersOf(options_.decoupled ? RuleForm::kAdamW : RuleForm::kAdam, DecaysIn(step),
                   Constants(step));
}

void Adam::Apply(float* weights_out, const float* weights_in, const float* gradient, float* state,
                 size_t n, const RuleStep& step) const {
  CAPSTAN_CHECK(state != nullptr || n == 0);
  const AdamConstants c = Constants(step);
  if (!DecaysIn(step)) {
    RunAdam<AdamDecay::kNone>(weights_out, weights_in, gradient, state, n, c);
  } else if (options_.decoupled) {
    RunAdam<AdamDecay::kDecoupled>(weights_out, weights_in, gradient, state, n, c);
  } else {
    RunAdam<AdamDecay::kGradient>(weights_out, weights_in, gradient, state, n, c);
  }
}

}  // namespace capstan::training
