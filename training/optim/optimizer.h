// An update rule on any range of the flat vector. Shards, and workers that update their own
// replica, use the same code.
//
// Rules are elementwise: the result does not depend on how the vector is cut into ranges. Padding
// (weight, gradient and state 0) stays 0.
//
// Threads: const methods may be called from many threads on ranges that do not overlap.
#ifndef CAPSTAN_TRAINING_OPTIM_OPTIMIZER_H_
#define CAPSTAN_TRAINING_OPTIM_OPTIMIZER_H_

#include <cstddef>

namespace capstan::training {

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Floats of state per weight; state of weight i lies at [i * n_state, (i + 1) * n_state). It
  // begins as zeros.
  virtual int state_floats_per_weight() const = 0;

  // Updates n weights and their state. weights_out == weights_in (in place) or no overlap; no
  // other ranges overlap. `state` may be null where there is none. The learning rate is rounded to
  // float once. `gradient` is already the mean over the step's samples.
  virtual void Apply(float* weights_out, const float* weights_in, const float* gradient,
                     float* state, size_t n, double learning_rate) const = 0;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_OPTIMIZER_H_
