// RMSprop in PyTorch's formula (torch.optim.RMSprop), every operation rounded to float32:
//
//   g += weight_decay * w                          if weight_decay > 0
//   v = alpha * v + (1 - alpha) * g^2              begins as 0
//   a = alpha * a + (1 - alpha) * g                if centered; begins as 0
//   u = g / (sqrt(centered ? v - a^2 : v) + epsilon)
//   b = momentum * b + u                           if momentum > 0; begins as 0
//   w -= learning_rate * (momentum > 0 ? b : u)
//
// v - a^2 falls below 0 only by rounding. It then counts as 0 (PyTorch: not a number). The learning
// rate is not part of b, so a schedule acts at once.
//
// Sources: Tieleman & Hinton 2012, Neural Networks for Machine Learning, lecture 6.5; centered:
// Graves 2013, arXiv:1308.0850, equations 38 to 45, with epsilon outside the root, as in PyTorch.
#ifndef CAPSTAN_TRAINING_OPTIM_RMSPROP_H_
#define CAPSTAN_TRAINING_OPTIM_RMSPROP_H_

#include <optional>

#include "absl/status/statusor.h"
#include "training/optim/optimizer.h"
#include "training/optim/rmsprop_rule.h"

namespace capstan::training {

struct RmspropOptions {
  double alpha = 0.99;    // [0, 1)
  double epsilon = 1e-8;  // [1e-30, 1000]
  double momentum = 0;    // [0, 1)
  bool centered = false;
  double weight_decay = 0;  // >= 0, finite
};

class Rmsprop final : public Optimizer {
 public:
  // InvalidArgument: an option outside its range.
  static absl::StatusOr<Rmsprop> Create(const RmspropOptions& options,
                                        const UpdateOptions& update = {});

  // v, a with centered, b with momentum.
  int state_floats_per_weight() const override {
    return 1 + (options_.centered ? 1 : 0) + (options_.momentum > 0 ? 1 : 0);
  }
  void Apply(float* weights_out, const float* weights_in, const float* gradient, float* state,
             size_t n, const RuleStep& step) const override;
  std::optional<RuleNumbers> Numbers(const RuleStep& step) const override;

 private:
  Rmsprop(const RmspropOptions& options, const UpdateOptions& update)
      : Optimizer(update), options_(options) {}

  RmspropConstants Constants(const RuleStep& step) const;
  bool DecaysIn(const RuleStep& step) const { return options_.weight_decay > 0 && step.decay; }

  RmspropOptions options_;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_RMSPROP_H_
