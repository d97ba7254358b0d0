#include "training/optim/lars.h"

#include "services/check/check.h"
#include "training/norm/norm_tree.h"
#include "training/optim/lars_rule.h"
#include "training/optim/rule_loop.h"

// This file is built with -O3 -fno-math-errno, as rule_loop.h says.
namespace capstan::training {
namespace {

template <bool kDecay, bool kMomentum>
void Run(float* out, const float* in, const float* gradient, float* state, size_t n,
         const LarsConstants& c) {
  RunRule<kMomentum ? 1 : 0>(out, in, gradient, state, n, [c](float w, float g, float* v) {
    return LarsUpdate<kDecay, kMomentum>(w, g, v, c);
  });
}

}  // namespace

absl::StatusOr<Lars> Lars::Create(const LarsOptions& options, const UpdateOptions& update) {
  for (const absl::Status& status :
       {WantFraction("momentum", options.momentum), WantDecay(options.weight_decay),
        WantBetween("eta", options.eta, 1e-30, 1000), WantEpsilon(options.epsilon)}) {
    if (!status.ok()) return status;
  }
  return Lars(options, update);
}

void Lars::Apply(float* weights_out, const float* weights_in, const float* gradient, float* state,
                 size_t n, const RuleStep& step) const {
  const LarsConstants c{
      static_cast<float>(options_.momentum), static_cast<float>(options_.weight_decay),
      static_cast<float>(step.learning_rate), static_cast<float>(step.trust_ratio)};
  const bool decay = options_.weight_decay > 0 && step.decay;
  if (options_.momentum == 0) {
    decay ? Run<true, false>(weights_out, weights_in, gradient, state, n, c)
          : Run<false, false>(weights_out, weights_in, gradient, state, n, c);
    return;
  }
  CAPSTAN_CHECK(state != nullptr || n == 0);
  decay ? Run<true, true>(weights_out, weights_in, gradient, state, n, c)
        : Run<false, true>(weights_out, weights_in, gradient, state, n, c);
}

double Lars::DirectionSquares(const float* /*weights*/, const float* gradient,
                              const float* /*state*/, size_t n, const RuleStep& /*step*/) const {
  return SquareSum({gradient, n});
}

double Lars::Ratio(const TensorNorms& norms, bool decay) const {
  if (!IsUsable(norms.weights) || !IsUsable(norms.direction)) return 1;
  const double decayed = decay ? options_.weight_decay * norms.weights : 0;
  return options_.eta * norms.weights / (norms.direction + decayed + options_.epsilon);
}

}  // namespace capstan::training
