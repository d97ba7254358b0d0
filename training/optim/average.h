// The rule of shards where workers have made steps of their own (kvstore.local_steps). Their
// "gradient" is the version's weights minus the workers' weights, averaged over the samples, so the
// new weights are the average of the workers' weights:
//
//   w -= g
//
// McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data",
// FederatedAveraging. There is no learning rate, and no state.
#ifndef CAPSTAN_TRAINING_OPTIM_AVERAGE_H_
#define CAPSTAN_TRAINING_OPTIM_AVERAGE_H_

#include "training/optim/optimizer.h"

namespace capstan::training {

class Average final : public Optimizer {
 public:
  Average() : Optimizer(UpdateOptions()) {}

  int state_floats_per_weight() const override { return 0; }
  void Apply(float* weights_out, const float* weights_in, const float* gradient, float* state,
             size_t n, const RuleStep& step) const override;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_AVERAGE_H_
