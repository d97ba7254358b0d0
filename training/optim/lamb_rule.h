// The direction and the update of one weight by the formulas of lamb.h. For the loops of the host
// and for the kernels of cards, so that both give the same bits. Its compiler must not contract a
// product and a sum into one rounding (-ffp-contract=off, --fmad=false). C++17 without includes,
// because nvcc reads it too.
//
// Threads: stateless.
#ifndef CAPSTAN_TRAINING_OPTIM_LAMB_RULE_H_
#define CAPSTAN_TRAINING_OPTIM_LAMB_RULE_H_

namespace capstan::training {

// The numbers of the job, the step and the tensor, each rounded once.
struct LambConstants {
  float beta1 = 0;
  float rest1 = 0;  // 1 - beta1
  float beta2 = 0;
  float rest2 = 0;  // 1 - beta2
  float epsilon = 0;
  float weight_decay = 0;
  float correction = 1;       // 1 - beta1^t, or 1
  float root_correction = 1;  // sqrt(1 - beta2^t), or 1
  float step_size = 0;        // learning_rate * ratio; not used by LambDirection
};

// Returns u and changes `state`, which is m and v of the weight. `root` is the square root rounded
// as IEEE 754 says.
template <bool kDecay, class Root>
constexpr float LambDirection(float w, float g, float* state, const LambConstants& c, Root root) {
  const float m = c.beta1 * state[0] + c.rest1 * g;
  const float v = c.beta2 * state[1] + c.rest2 * (g * g);
  state[0] = m;
  state[1] = v;
  const float u = m / c.correction / (root(v) / c.root_correction + c.epsilon);
  return kDecay ? u + c.weight_decay * w : u;
}

// Returns the new weight. Otherwise as LambDirection.
template <bool kDecay, class Root>
constexpr float LambUpdate(float w, float g, float* state, const LambConstants& c, Root root) {
  return w - c.step_size * LambDirection<kDecay>(w, g, state, c, root);
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_LAMB_RULE_H_
