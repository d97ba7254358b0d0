#include "training/optim/sgd.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "training/optim/rule_loop.h"

// This file is built with -O3. Each rule is one plain loop, which the compiler vectorises.
namespace capstan::training {
namespace {

template <bool kDecay, bool kMomentum, bool kNesterov>
void Loop(float* __restrict out, const float* __restrict in, const float* __restrict gradient,
          float* __restrict state, size_t n, const SgdConstants c) {
  for (size_t i = 0; i < n; ++i) {
    float v = kMomentum ? state[i] : 0.0f;
    out[i] = SgdUpdate<kDecay, kMomentum, kNesterov>(in[i], gradient[i], v, c);
    if constexpr (kMomentum) state[i] = v;
  }
}

template <bool kDecay, bool kMomentum, bool kNesterov>
void LoopInPlace(float* __restrict weights, const float* __restrict gradient,
                 float* __restrict state, size_t n, const SgdConstants c) {
  for (size_t i = 0; i < n; ++i) {
    float v = kMomentum ? state[i] : 0.0f;
    weights[i] = SgdUpdate<kDecay, kMomentum, kNesterov>(weights[i], gradient[i], v, c);
    if constexpr (kMomentum) state[i] = v;
  }
}

template <bool kDecay, bool kMomentum, bool kNesterov>
void Run(float* out, const float* in, const float* gradient, float* state, size_t n,
         const SgdConstants& c) {
  if (out == in) {
    LoopInPlace<kDecay, kMomentum, kNesterov>(out, gradient, state, n, c);
  } else {
    Loop<kDecay, kMomentum, kNesterov>(out, in, gradient, state, n, c);
  }
}

}  // namespace

absl::StatusOr<Sgd> Sgd::Create(const SgdOptions& options, const UpdateOptions& update) {
  if (!(options.momentum >= 0 && options.momentum < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("momentum: got ", options.momentum, ", want a number in [0, 1)"));
  }
  if (!(options.weight_decay >= 0 && std::isfinite(options.weight_decay))) {
    return absl::InvalidArgumentError(absl::StrCat("weight_decay: got ", options.weight_decay,
                                                   ", want a finite number from 0 on"));
  }
  if (options.nesterov && options.momentum == 0) {
    return absl::InvalidArgumentError("nesterov: got true with momentum 0, want momentum above 0");
  }
  return Sgd(options, update);
}

SgdConstants Sgd::Constants(const RuleStep& step) const {
  return {static_cast<float>(options_.momentum), static_cast<float>(options_.weight_decay),
          static_cast<float>(step.learning_rate)};
}

std::optional<RuleNumbers> Sgd::Numbers(const RuleStep& step) const {
  const RuleForm form = options_.momentum == 0 ? RuleForm::kSgd
                        : options_.nesterov    ? RuleForm::kNesterov
                                               : RuleForm::kMomentum;
  return NumbersOf(form, DecaysIn(step), Constants(step));
}

void Sgd::Apply(float* weights_out, const float* weights_in, const float* gradient, float* state,
                size_t n, const RuleStep& step) const {
  const SgdConstants c = Constants(step);
  const bool decay = DecaysIn(step);
  if (options_.momentum == 0) {
    decay ? Run<true, false, false>(weights_out, weights_in, gradient, state, n, c)
          : Run<false, false, false>(weights_out, weights_in, gradient, state, n, c);
    return;
  }
  CAPSTAN_CHECK(state != nullptr || n == 0);
  if (options_.nesterov) {
    decay ? Run<true, true, true>(weights_out, weights_in, gradient, state, n, c)
          : Run<false, true, true>(weights_out, weights_in, gradient, state, n, c);
  } else {
    decay ? Run<true, true, false>(weights_out, weights_in, gradient, state, n, c)
          : Run<false, true, false>(weights_out, weights_in, gradient, state, n, c);
  }
}

}  // namespace capstan::training
