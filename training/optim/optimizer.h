// An update rule on any range of the flat vector. Shards, and workers that update their own
// replica, use the same code.
//
// Rules are elementwise: the result does not depend on how the vector is cut into ranges. Padding
// (weight, gradient and state 0) stays 0.
//
// Numbers: every operation is rounded to float32 by itself, square roots and divisions as IEEE 754
// says, so that all processors give the same bits. What depends on the step alone (bias corrections)
// is computed in double and rounded once.
//
// Threads: const methods may be called from many threads on ranges that do not overlap.
#ifndef CAPSTAN_TRAINING_OPTIM_OPTIMIZER_H_
#define CAPSTAN_TRAINING_OPTIM_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>

namespace capstan::training {

// What ApplyVersion (apply.h) does around every rule.
struct UpdateOptions {
  // Only tensors that the job's initializer fills are decayed: no bias, no scale, no shift.
  bool decay_weights_only = false;
  // Each number of a gradient is brought into [-clip_value, clip_value]; above 0 in float32. 0: none is.
  double clip_value = 0;
};

// What a rule needs to know of a step.
struct RuleStep {
  double learning_rate = 0;
  int64_t number = 1;  // of the updates of the job, from 1; a skipped step is none
  bool decay = true;   // false: as if the rule's weight_decay were 0
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  const UpdateOptions& update() const { return update_; }

  // Floats of state per weight; state of weight i lies at [i * n_state, (i + 1) * n_state). It
  // begins as zeros.
  virtual int state_floats_per_weight() const = 0;

  // Updates n weights and their state. weights_out == weights_in (in place) or no overlap; no
  // other ranges overlap. `state` may be null where there is none. The learning rate, or what the
  // rule makes of it, is rounded to float once. `gradient` is already the mean over the step's
  // samples.
  virtual void Apply(float* weights_out, const float* weights_in, const float* gradient,
                     float* state, size_t n, const RuleStep& step) const = 0;

 protected:
  explicit Optimizer(const UpdateOptions& update) : update_(update) {}

 private:
  UpdateOptions update_;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_OPTIMIZER_H_
