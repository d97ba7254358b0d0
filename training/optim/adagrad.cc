#include "training/optim/adagrad.h"

#include "services/check/check.h"
#include "training/optim/rule_loop.h"

// This file is built with -O3 -fno-math-errno, as rule_loop.h says.
namespace capstan::training {
namespace {

template <bool kDecay>
void RunAdagrad(float* out, const float* in, const float* gradient, float* state, size_t n,
                const AdagradConstants& c) {
  RunRule<1>(out, in, gradient, state, n, [c](float w, float g, float* s) {
    return AdagradUpdate<kDecay>(w, g, s, c, IeeeRoot());
  });
}

}  // namespace

absl::StatusOr<Adagrad> Adagrad::Create(const AdagradOptions& options,
                                        const UpdateOptions& update) {
  for (const absl::Status& status :
       {WantEpsilon(options.epsilon), WantDecay(options.weight_decay)}) {
    if (!status.ok()) return status;
  }
  return Adagrad(options, update);
}

AdagradConstants Adagrad::Constants(const RuleStep& step) const {
  return {static_cast<float>(options_.epsilon), static_cast<float>(options_.weight_decay),
          static_cast<float>(step.learning_rate)};
}

std::optional<RuleNumbers> Adagrad::Numbers(const RuleStep& step) const {
  return NumbersOf(RuleForm::kAdagrad, DecaysIn(step), Constants(step));
}

void Adagrad::Apply(float* weights_out, const float* weights_in, const float* gradient,
                    float* state, size_t n, const RuleStep& step) const {
  CAPSTAN_CHECK(state != nullptr || n == 0);
  const AdagradConstants c = Constants(step);
  if (DecaysIn(step)) {
    RunAdagrad<true>(weights_out, weights_in, gradient, state, n, c);
  } else {
    RunAdagrad<false>(weights_out, weights_in, gradient, state, n, c);
  }
}

}  // namespace capstan::training
