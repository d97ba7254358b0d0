// Adagrad in PyTorch's formula (torch.optim.Adagrad with lr_decay 0 and initial_accumulator_value
// 0), every operation rounded to float32:
//
//   g += weight_decay * w                          if weight_decay > 0
//   s = s + g^2                                    begins as 0
//   w -= learning_rate * g / (sqrt(s) + epsilon)
//
// PyTorch's lr_decay is a schedule. Here `lr_schedule` changes the rate.
//
// Source: Duchi, Hazan & Singer 2011, JMLR 12:2121-2159, the diagonal form of figure 1.
#ifndef CAPSTAN_TRAINING_OPTIM_ADAGRAD_H_
#define CAPSTAN_TRAINING_OPTIM_ADAGRAD_H_

#include <optional>

#include "absl/status/statusor.h"
#include "training/optim/adagrad_rule.h"
#include "training/optim/optimizer.h"

namespace capstan::training {

struct AdagradOptions {
  double epsilon = 1e-10;   // [1e-30, 1000]
  double weight_decay = 0;  // >= 0, finite
};

class Adagrad final : public Optimizer {
 public:
  // InvalidArgument: an option outside its range.
  static absl::StatusOr<Adagrad> Create(const AdagradOptions& options,
                                        const UpdateOptions& update = {});

  int state_floats_per_weight() const override { return 1; }  // s
  void Apply(float* weights_out, const float* weights_in, const float* gradient, float* state,
             size_t n, const RuleStep& step) const override;
  std::optional<RuleNumbers> Numbers(const RuleStep& step) const override;

 private:
  Adagrad(const AdagradOptions& options, const UpdateOptions& update)
      : Optimizer(update), options_(options) {}

  AdagradConstants Constants(const RuleStep& step) const;
  bool DecaysIn(const RuleStep& step) const { return options_.weight_decay > 0 && step.decay; }

  AdagradOptions options_;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_ADAGRAD_H_
