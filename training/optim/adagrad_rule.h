// The update of one weight by the formula of adagrad.h. For the loops of the host and for the
// kernels of cards, so that both give the same bits. Its compiler must not contract a product and a
// sum into one rounding (-ffp-contract=off, --fmad=false). C++17 without includes, because nvcc
// reads it too.
//
// Threads: stateless.
#ifndef CAPSTAN_TRAINING_OPTIM_ADAGRAD_RULE_H_
#define CAPSTAN_TRAINING_OPTIM_ADAGRAD_RULE_H_

namespace capstan::training {

// The numbers of the job, each rounded once.
// The order crosses the plug-in ABI; a change needs a new CAPSTAN_PLUGIN_ABI.
struct AdagradConstants {
  float epsilon = 0;
  float weight_decay = 0;
  float learning_rate = 0;
};

// Returns the new weight. `state` is s of the weight. `root` is the square root rounded as IEEE 754
// says.
template <bool kDecay, class Root>
constexpr float AdagradUpdate(float w, float g, float* state, const AdagradConstants& c,
                              Root root) {
  if constexpr (kDecay) g += c.weight_decay * w;
  const float s = state[0] + g * g;
  state[0] = s;
  return w - c.learning_rate * (g / (root(s) + c.epsilon));
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_ADAGRAD_RULE_H_
