// The update of one weight by the formulas of adam.h. For the loops of the host and for the kernels
// of cards, so that both give the same bits. Its compiler must not contract a product and a sum
// into one rounding (-ffp-contract=off, --fmad=false). C++17 without includes, because nvcc reads
// it too.
//
// Threads: stateless.
#ifndef CAPSTAN_TRAINING_OPTIM_ADAM_RULE_H_
#define CAPSTAN_TRAINING_OPTIM_ADAM_RULE_H_

namespace capstan::training {

enum class AdamDecay {
  kNone,
  kGradient,   // adam: added to the gradient
  kDecoupled,  // adamw: applied to the weight, before the update
};

// The numbers of the job and of the step, each rounded once.
// The order crosses the plug-in ABI; a change needs a new CAPSTAN_PLUGIN_ABI.
struct AdamConstants {
  float beta1 = 0;
  float rest1 = 0;  // 1 - beta1
  float beta2 = 0;
  float rest2 = 0;  // 1 - beta2
  float epsilon = 0;
  float weight_decay = 0;     // kGradient
  float keep = 1;             // kDecoupled: 1 - learning_rate * weight_decay
  float step_size = 0;        // learning_rate / (1 - beta1^t)
  float root_correction = 1;  // sqrt(1 - beta2^t)
};

// base^exponent for exponent >= 0 by squaring. It uses only products, which every processor rounds
// alike.
constexpr double PowerBySquaring(double base, long long exponent) {
  double power = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) power *= base;
    base *= base;
  }
  return power;
}

// Returns the new weight. `state` is m and v of the weight. `root` is the square root rounded as
// IEEE 754 says.
template <AdamDecay kDecay, class Root>
constexpr float AdamUpdate(float w, float g, float* state, const AdamConstants& c, Root root) {
  if constexpr (kDecay == AdamDecay::kGradient) g += c.weight_decay * w;
  if constexpr (kDecay == AdamDecay::kDecoupled) w *= c.keep;
  const float m = c.beta1 * state[0] + c.rest1 * g;
  const float v = c.beta2 * state[1] + c.rest2 * (g * g);
  state[0] = m;
  state[1] = v;
  return w - c.step_size * (m / (root(v) / c.root_correction + c.epsilon));
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_ADAM_RULE_H_
