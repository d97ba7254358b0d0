// The update of one weight, by the formula of sgd.h: for the loops of the host and the kernels of
// cards alike, so that both give the same bits. Whoever compiles it must not contract a product and
// a sum into one rounding (-ffp-contract=off, --fmad=false). C++17 and nothing included: nvcc reads
// it too.
//
// Threads: stateless.
#ifndef CAPSTAN_TRAINING_OPTIM_SGD_RULE_H_
#define CAPSTAN_TRAINING_OPTIM_SGD_RULE_H_

namespace capstan::training {

// Rounded once from the numbers of the job.
struct SgdConstants {
  float momentum = 0;
  float weight_decay = 0;
  float learning_rate = 0;
};

// The new weight; `v` is the momentum of the weight, unused without momentum.
template <bool kDecay, bool kMomentum, bool kNesterov>
constexpr float SgdUpdate(float w, float g, float& v, const SgdConstants& c) {
  if constexpr (kDecay) g += c.weight_decay * w;
  if constexpr (kMomentum) {
    v = c.momentum * v + g;
    g = kNesterov ? g + c.momentum * v : v;
  }
  return w - c.learning_rate * g;
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_SGD_RULE_H_
