// The update of one weight by the formula of lars.h. For the loops of the host and for the kernels
// of cards, so that both give the same bits. Its compiler must not contract a product and a sum into
// one rounding (-ffp-contract=off, --fmad=false). C++17 without includes, because nvcc reads it too.
//
// Threads: stateless.
#ifndef CAPSTAN_TRAINING_OPTIM_LARS_RULE_H_
#define CAPSTAN_TRAINING_OPTIM_LARS_RULE_H_

namespace capstan::training {

// The numbers of the job, the step and the tensor, each rounded once.
struct LarsConstants {
  float momentum = 0;
  float weight_decay = 0;
  float learning_rate = 0;
  float trust_ratio = 1;
};

// Returns the new weight. `v` is the momentum of the weight; null without momentum.
template <bool kDecay, bool kMomentum>
constexpr float LarsUpdate(float w, float g, float* v, const LarsConstants& c) {
  if constexpr (kDecay) g += c.weight_decay * w;
  g *= c.trust_ratio;
  if constexpr (kMomentum) {
    g = c.momentum * v[0] + g;
    v[0] = g;
  }
  return w - c.learning_rate * g;
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_LARS_RULE_H_
