// Version s + 1 of a range of the flat vector, from version s and the sum of step s: the one update
// of shards and of a task that is its own store.
//
// Weights go by the optimizer. Their gradient is the sum times `gradient_scale`, clipped where the
// optimizer says so (UpdateOptions); which tensors are decayed is its option too. Running
// statistics (rule R3) go towards the sum times `gradient_scale`, which is the average of the lanes'
// statistics by samples, by the momentum of their tensor (statistic_rule.h); nothing else of the job
// acts on them. They have places in the optimizer's state, as everything has, and these are left
// alone.
//
// The result does not depend on how the vector is cut into ranges. Padding (weight, sum and state 0)
// stays 0.
//
// Threads: may be called from many threads on ranges that do not overlap.
#ifndef CAPSTAN_TRAINING_OPTIM_APPLY_H_
#define CAPSTAN_TRAINING_OPTIM_APPLY_H_

#include <cstdint>

#include "training/chunks/flat_layout.h"
#include "training/optim/optimizer.h"

namespace capstan::training {

// Of the decision of a step that is applied. A step that is skipped changes nothing at all.
struct VersionUpdate {
  double learning_rate = 0;
  // Factor on the sum, 1 / the loss scale, and nothing else: statistics carry that alone. Rounded to
  // float, as the product is. Of a power of two the product is exact.
  double gradient_scale = 1;
  // Steps of the job that were applied before this one (skipped ones are not counted): its number is
  // one more.
  int64_t applied_steps = 0;
};

// All begin with the first float of the range. `out` == `in`, or no overlap; no others overlap.
struct VersionVectors {
  float* out = nullptr;
  const float* in = nullptr;
  const float* sum = nullptr;
  float* state = nullptr;  // Optimizer::state_floats_per_weight() for each; null where that is 0
};

// `range` lies inside the layout.
void ApplyVersion(const FlatLayout& layout, const FlatRange& range, const Optimizer& optimizer,
                  const VersionUpdate& update, const VersionVectors& vectors);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_APPLY_H_
