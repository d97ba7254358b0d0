// Makes version s + 1 of a range of the flat vector from version s and the sum of step s. Shards,
// and a task that stores its own weights, both update with this code.
//
// The optimizer updates the weights. Their gradient is the sum times `gradient_scale` and
// `clip_factor`. Then each number is clipped if the optimizer says so (UpdateOptions). Which
// tensors are decayed is an option of the optimizer, too. Running statistics (rule R3) move towards
// the sum times `gradient_scale`, which is the average of the lanes' statistics by samples, by the
// momentum of their tensor (statistic_rule.h). Nothing else of the job changes them. They have
// places in the optimizer's state like all floats, but these are not used.
//
// The result does not depend on how the vector is cut into ranges. Padding (weight, sum and state
// 0) stays 0.
//
// Threads: may be called from many threads on ranges that do not overlap.
#ifndef CAPSTAN_TRAINING_OPTIM_APPLY_H_
#define CAPSTAN_TRAINING_OPTIM_APPLY_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "training/chunks/flat_layout.h"
#include "training/optim/optimizer.h"

namespace capstan::training {

// The part of a decision that an applied step needs. A skipped step changes nothing at all.
struct VersionUpdate {
  double learning_rate = 0;
  // Factor on the sum. It is exactly 1 / the loss scale, because statistics carry no other factor.
  // It is rounded to float, and so is the product. The product with a power of two is exact.
  double gradient_scale = 1;
  // Another factor on the gradient, from clipping by norm, in (0, 1]. The product of both factors
  // is rounded to float once. Running statistics do not have it.
  double clip_factor = 1;
  // Steps of the job that were applied before this one, without skipped ones. This step's number is
  // one more.
  int64_t applied_steps = 0;
  // Of optimizers with a TrustRule: a factor on the update of each tensor with weights, in the order
  // of FlatLayout::slots() (TrustRatios in trust_rule.h). Empty: the optimizer has no such rule.
  absl::Span<const double> trust_ratios = {};
};

// All pointers are to the first float of the range. `out` may equal `in`; otherwise nothing
// overlaps.
struct VersionVectors {
  float* out = nullptr;
  const float* in = nullptr;
  const float* sum = nullptr;
  float* state = nullptr;  // Optimizer::state_floats_per_weight() per weight; null if that is 0
};

// `range` must lie inside the layout.
void ApplyVersion(const FlatLayout& layout, const FlatRange& range, const Optimizer& optimizer,
                  const VersionUpdate& update, const VersionVectors& vectors);

// A run of floats of the flat vector that one rule updates, with one set of numbers.
struct UpdatePart {
  int64_t size = 0;
  float scale = 1;  // factor on the sum
  float clip = 0;   // each scaled number is then clipped to [-clip, clip]; 0: it is not
  RuleNumbers rule;
};

// The same update as ApplyVersion of the whole vector, as parts that follow each other from its
// begin. For devices that update by themselves (GradientOf and UpdateByNumbers in rule_numbers.h).
// The optimizer must have Numbers.
std::vector<UpdatePart> UpdateParts(const FlatLayout& layout, const Optimizer& optimizer,
                                    const VersionUpdate& update);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_APPLY_H_
