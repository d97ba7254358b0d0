// An update rule on any range of the flat vector. Shards, and workers that update their own
// replica, use the same code.
//
// Rules are elementwise: the result does not depend on how the vector is cut into ranges. Padding
// (weight, gradient and state 0) stays 0.
//
// Numbers: every operation is rounded to float32 by itself, with square roots and divisions as IEEE
// 754 says, so that all processors give the same bits. Terms that depend only on the step (bias
// corrections) are computed in double and rounded once.
//
// Threads: const methods may be called from many threads on ranges that do not overlap.
#ifndef CAPSTAN_TRAINING_OPTIM_OPTIMIZER_H_
#define CAPSTAN_TRAINING_OPTIM_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "training/chunks/flat_layout.h"
#include "training/optim/rule_numbers.h"

namespace capstan::training {

// What ApplyVersion (apply.h) does in addition to the rule.
struct UpdateOptions {
  // Decays only tensors that the job's initializer fills, i.e. no bias, scale or shift.
  bool decay_weights_only = false;
  // Each number of a gradient is clipped to [-clip_value, clip_value]. Above 0 in float32; 0 means
  // no clipping.
  double clip_value = 0;
};

// What a rule needs to know about a step.
struct RuleStep {
  double learning_rate = 0;
  int64_t number = 1;      // of the update within the job, from 1; skipped steps do not count
  bool decay = true;       // false: as if the rule's weight_decay were 0
  double trust_ratio = 1;  // of the tensor; read by rules that have a TrustRule
};

// Whether the options let this tensor be decayed.
inline bool Decays(const TensorSpec& tensor, const UpdateOptions& update) {
  return !update.decay_weights_only || tensor.init == TensorInit::kInitializer;
}

class TrustRule;  // trust_rule.h

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  const UpdateOptions& update() const { return update_; }

  // Floats of state per weight. The state of weight i lies at [i * n_state, (i + 1) * n_state) and
  // begins as zeros.
  virtual int state_floats_per_weight() const = 0;

  // Updates n weights and their state. weights_out may equal weights_in (in place); otherwise no
  // ranges overlap. `state` may be null if there is none. The learning rate, or the number that the
  // rule computes from it, is rounded to float once. `gradient` is already the mean over the step's
  // samples.
  virtual void Apply(float* weights_out, const float* weights_in, const float* gradient,
                     float* state, size_t n, const RuleStep& step) const = 0;

  // The rule of a step for devices that update by themselves, with the bits of Apply. Unset: only the
  // host has this rule.
  virtual std::optional<RuleNumbers> Numbers(const RuleStep& /*step*/) const {
    return std::nullopt;
  }

  // Of rules that scale each tensor's update by a ratio. Null: the rule needs no norms of tensors.
  virtual const TrustRule* trust_rule() const { return nullptr; }

 protected:
  explicit Optimizer(const UpdateOptions& update) : update_(update) {}

 private:
  UpdateOptions update_;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_OPTIMIZER_H_
