// The update of one weight by the formula of ftrl.h. For the loops of the host and for the kernels
// of cards, so that both give the same bits. Its compiler must not contract a product and a sum
// into one rounding (-ffp-contract=off, --fmad=false). C++17 without includes, because nvcc reads
// it too.
//
// Threads: stateless.
#ifndef CAPSTAN_TRAINING_OPTIM_FTRL_RULE_H_
#define CAPSTAN_TRAINING_OPTIM_FTRL_RULE_H_

namespace capstan::training {

// The numbers of the job and of the step, each rounded once.
// The order crosses the plug-in ABI; a change needs a new CAPSTAN_PLUGIN_ABI.
struct FtrlConstants {
  float l1 = 0;
  float beta = 0;
  float weight_decay = 0;   // 0 where the step does not decay
  float learning_rate = 0;  // not 0
};

// Returns the new weight. `state` is z and n of the weight. `root` is the square root rounded as
// IEEE 754 says. If z is not a number, the weight is not a number either.
template <class Root>
constexpr float FtrlUpdate(float w, float g, float* state, const FtrlConstants& c, Root root) {
  const float old_root = root(state[1]);
  const float n = state[1] + g * g;
  const float new_root = root(n);
  const float sigma = (new_root - old_root) / c.learning_rate;
  const float z = state[0] + (g - sigma * w);
  state[0] = z;
  state[1] = n;
  const float size = z > 0 ? z : -z;
  const float over = (z > 0 ? c.l1 : -c.l1) - z;
  const float next = over / ((c.beta + new_root) / c.learning_rate + c.weight_decay);
  return size <= c.l1 ? 0.0f : next;
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_FTRL_RULE_H_
