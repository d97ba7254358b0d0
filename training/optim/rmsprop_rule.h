// The update of one weight by the formula of rmsprop.h. For the loops of the host and for the
// kernels of cards, so that both give the same bits. Its compiler must not contract a product and a
// sum into one rounding (-ffp-contract=off, --fmad=false). C++17 without includes, because nvcc
// reads it too.
//
// Threads: stateless.
#ifndef CAPSTAN_TRAINING_OPTIM_RMSPROP_RULE_H_
#define CAPSTAN_TRAINING_OPTIM_RMSPROP_RULE_H_

namespace capstan::training {

// The numbers of the job, each rounded once.
// The order crosses the plug-in ABI; a change needs a new CAPSTAN_PLUGIN_ABI.
struct RmspropConstants {
  float alpha = 0;
  float rest = 0;  // 1 - alpha
  float epsilon = 0;
  float momentum = 0;
  float weight_decay = 0;
  float learning_rate = 0;
};

// Returns the new weight. `state` is v of the weight, then a if kCentered, then b if kMomentum.
// `root` is the square root rounded as IEEE 754 says.
template <bool kDecay, bool kCentered, bool kMomentum, class Root>
constexpr float RmspropUpdate(float w, float g, float* state, const RmspropConstants& c,
                              Root root) {
  if constexpr (kDecay) g += c.weight_decay * w;
  const float v = c.alpha * state[0] + c.rest * (g * g);
  state[0] = v;
  float spread = v;
  if constexpr (kCentered) {
    const float a = c.alpha * state[1] + c.rest * g;
    state[1] = a;
    spread = v - a * a;
    spread = spread > 0 ? spread : 0.0f;
  }
  const float change = g / (root(spread) + c.epsilon);
  if constexpr (kMomentum) {
    float& b = state[kCentered ? 2 : 1];
    b = c.momentum * b + change;
    return w - c.learning_rate * b;
  }
  return w - c.learning_rate * change;
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_RMSPROP_RULE_H_
