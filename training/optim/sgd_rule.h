// The update of one weight by the formula of sgd.h. For the loops of the host and for the kernels
// of cards, so that both give the same bits. Its compiler must not contract a product and a sum
// into one rounding (-ffp-contract=off, --fmad=false). C++17 without includes, because nvcc reads
// it too.
//
// Threads: stateless.
#ifndef CAPSTAN_TRAINING_OPTIM_SGD_RULE_H_
#define CAPSTAN_TRAINING_OPTIM_SGD_RULE_H_

namespace capstan::training {

// The numbers of the job, each rounded once.
// The order crosses the plug-in ABI; a change needs a new CAPSTAN_PLUGIN_ABI.
struct SgdConstants {
  float momentum = 0;
  float weight_decay = 0;
  float learning_rate = 0;
};

// Returns the new weight. `v` is the momentum of the weight; it is not used without momentum.
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
