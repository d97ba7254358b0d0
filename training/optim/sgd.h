// Stochastic gradient descent with momentum, Nesterov and weight decay, in PyTorch's formula
// (torch.optim.SGD, dampening 0), every operation rounded to float32:
//
//   g += weight_decay * w            if weight_decay > 0
//   v = momentum * v + g             if momentum > 0; v begins as 0
//   g = nesterov ? g + momentum * v : v
//   w -= learning_rate * g
//
// PyTorch sets v = g in the first step, which is the same. The learning rate is not part of v, so a
// schedule acts at once (unlike MXNet's sgd, where v = momentum * v - learning_rate * g).
#ifndef CAPSTAN_TRAINING_OPTIM_SGD_H_
#define CAPSTAN_TRAINING_OPTIM_SGD_H_

#include <optional>

#include "absl/status/statusor.h"
#include "training/optim/optimizer.h"
#include "training/optim/sgd_rule.h"

namespace capstan::training {

struct SgdOptions {
  double momentum = 0;      // [0, 1)
  bool nesterov = false;    // needs momentum > 0
  double weight_decay = 0;  // >= 0, finite
};

class Sgd final : public Optimizer {
 public:
  // InvalidArgument: an option outside its range.
  static absl::StatusOr<Sgd> Create(const SgdOptions& options, const UpdateOptions& update = {});

  // 1 with momentum, else 0.
  int state_floats_per_weight() const override { return options_.momentum > 0 ? 1 : 0; }
  void Apply(float* weights_out, const float* weights_in, const float* gradient, float* state,
             size_t n, const RuleStep& step) const override;
  std::optional<RuleNumbers> Numbers(const RuleStep& step) const override;

 private:
  Sgd(const SgdOptions& options, const UpdateOptions& update)
      : Optimizer(update), options_(options) {}

  SgdConstants Constants(const RuleStep& step) const;
  bool DecaysIn(const RuleStep& step) const { return options_.weight_decay > 0 && step.decay; }

  SgdOptions options_;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_SGD_H_
