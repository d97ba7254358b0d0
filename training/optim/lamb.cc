#include "training/optim/lamb.h"

#include <algorithm>
#include <cmath>

#include "services/check/check.h"
#include "training/norm/norm_tree.h"
#include "training/optim/adam_rule.h"
#include "training/optim/rule_loop.h"

// This file is built with -O3 -fno-math-errno, as rule_loop.h says.
namespace capstan::training {
namespace {

constexpr size_t kBlock = 4096;  // floats; 16 KiB of the stack
constexpr double kMostBound = 1e30;

template <bool kDecay>
void Run(float* out, const float* in, const float* gradient, float* state, size_t n,
         const LambConstants& c) {
  RunRule<2>(out, in, gradient, state, n, [c](float w, float g, float* s) {
    return LambUpdate<kDecay>(w, g, s, c, IeeeRoot());
  });
}

template <bool kDecay>
void Directions(float* __restrict out, const float* __restrict weights,
                const float* __restrict gradient, const float* __restrict state, size_t n,
                const LambConstants& c) {
  for (size_t i = 0; i < n; ++i) {
    float copy[2] = {state[2 * i], state[2 * i + 1]};
    out[i] = LambDirection<kDecay>(weights[i], gradient[i], copy, c, IeeeRoot());
  }
}

}  // namespace

absl::StatusOr<Lamb> Lamb::Create(const LambOptions& options, const UpdateOptions& update) {
  const double lower = options.lower_bound.value_or(0);
  const double upper = options.upper_bound.value_or(kMostBound);
  for (const absl::Status& status :
       {WantFraction("beta1", options.beta1), WantFraction("beta2", options.beta2),
        WantEpsilon(options.epsilon), WantDecay(options.weight_decay),
        WantBetween("upper_bound", upper, 0, kMostBound),
        WantBetween("lower_bound", lower, 0, upper)}) {
    if (!status.ok()) return status;
  }
  return Lamb(options, update);
}

LambConstants Lamb::Constants(const RuleStep& step) const {
  CAPSTAN_CHECK(step.number >= 1);
  const LambOptions& o = options_;
  LambConstants c;
  c.beta1 = static_cast<float>(o.beta1);
  c.rest1 = static_cast<float>(1 - o.beta1);
  c.beta2 = static_cast<float>(o.beta2);
  c.rest2 = static_cast<float>(1 - o.beta2);
  c.epsilon = static_cast<float>(o.epsilon);
  c.weight_decay = static_cast<float>(o.weight_decay);
  if (o.bias_correction) {
    c.correction = static_cast<float>(1 - PowerBySquaring(o.beta1, step.number));
    c.root_correction = static_cast<float>(std::sqrt(1 - PowerBySquaring(o.beta2, step.number)));
  }
  c.step_size = static_cast<float>(step.learning_rate * step.trust_ratio);
  return c;
}

void Lamb::Apply(float* weights_out, const float* weights_in, const float* gradient, float* state,
                 size_t n, const RuleStep& step) const {
  CAPSTAN_CHECK(state != nullptr || n == 0);
  const LambConstants c = Constants(step);
  if (options_.weight_decay > 0 && step.decay) {
    Run<true>(weights_out, weights_in, gradient, state, n, c);
  } else {
    Run<false>(weights_out, weights_in, gradient, state, n, c);
  }
}

double Lamb::DirectionSquares(const float* weights, const float* gradient, const float* state,
                              size_t n, const RuleStep& step) const {
  CAPSTAN_CHECK(state != nullptr || n == 0);
  const LambConstants c = Constants(step);
  const bool decay = options_.weight_decay > 0 && step.decay;
  alignas(64) float direction[kBlock];
  double squares = 0;
  for (size_t at = 0; at < n; at += kBlock) {
    const size_t count = std::min(kBlock, n - at);
    if (decay) {
      Directions<true>(direction, weights + at, gradient + at, state + 2 * at, count, c);
    } else {
      Directions<false>(direction, weights + at, gradient + at, state + 2 * at, count, c);
    }
    squares += SquareSum({direction, count});
  }
  return squares;
}

double Lamb::Ratio(const TensorNorms& norms, bool /*decay*/) const {
  const double upper = options_.upper_bound.value_or(norms.weights);
  const double lower = options_.lower_bound.value_or(0);
  const double weights = std::max(std::min(norms.weights, upper), lower);
  return IsUsable(weights) && IsUsable(norms.direction) ? weights / norms.direction : 1;
}

}  // namespace capstan::training
