#include "training/optim/rmsprop.h"

#include "services/check/check.h"
#include "training/optim/rule_loop.h"

// This file is built with -O3 -fno-math-errno, as rule_loop.h says.
namespace capstan::training {
namespace {

struct RmspropRange {
  float* out;
  const float* in;
  const float* gradient;
  float* state;
  size_t n;
};

template <bool kDecay, bool kCentered, bool kMomentum>
void RunRmsprop(const RmspropRange& r, const RmspropConstants& c) {
  constexpr int kStates = 1 + (kCentered ? 1 : 0) + (kMomentum ? 1 : 0);
  RunRule<kStates>(r.out, r.in, r.gradient, r.state, r.n, [c](float w, float g, float* s) {
    return RmspropUpdate<kDecay, kCentered, kMomentum>(w, g, s, c, IeeeRoot());
  });
}

template <bool kDecay>
void RunRmsprop(const RmspropRange& range, const RmspropConstants& c, bool centered,
                bool momentum) {
  if (centered) {
    momentum ? RunRmsprop<kDecay, true, true>(range, c) : RunRmsprop<kDecay, true, false>(range, c);
  } else {
    momentum ? RunRmsprop<kDecay, false, true>(range, c)
             : RunRmsprop<kDecay, false, false>(range, c);
  }
}

}  // namespace

absl::StatusOr<Rmsprop> Rmsprop::Create(const RmspropOptions& options,
                                        const UpdateOptions& update) {
  for (const absl::Status& status :
       {WantFraction("alpha", options.alpha), WantEpsilon(options.epsilon),
        WantFraction("momentum", options.momentum), WantDecay(options.weight_decay)}) {
    if (!status.ok()) return status;
  }
  return Rmsprop(options, update);
}

RmspropConstants Rmsprop::Constants(const RuleStep& step) const {
  const RmspropOptions& o = options_;
  return {static_cast<float>(o.alpha),        static_cast<float>(1 - o.alpha),
          static_cast<float>(o.epsilon),      static_cast<float>(o.momentum),
          static_cast<float>(o.weight_decay), static_cast<float>(step.learning_rate)};
}

std::optional<RuleNumbers> Rmsprop::Numbers(const RuleStep& step) const {
  const bool momentum = options_.momentum > 0;
  const RuleForm form =
      options_.centered
          ? (momentum ? RuleForm::kRmspropCenteredMomentum : RuleForm::kRmspropCentered)
          : (momentum ? RuleForm::kRmspropMomentum : RuleForm::kRmsprop);
  return NumbersOf(form, DecaysIn(step), Constants(step));
}

void Rmsprop::Apply(float* weights_out, const float* weights_in, const float* gradient,
                    float* state, size_t n, const RuleStep& step) const {
  CAPSTAN_CHECK(state != nullptr || n == 0);
  const RmspropOptions& o = options_;
  const RmspropConstants c = Constants(step);
  const RmspropRange range{weights_out, weights_in, gradient, state, n};
  if (DecaysIn(step)) {
    RunRmsprop<true>(range, c, o.centered, o.momentum > 0);
  } else {
    RunRmsprop<false>(range, c, o.centered, o.momentum > 0);
  }
}

}  // namespace capstan::training
