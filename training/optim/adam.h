// Adam and AdamW in PyTorch's formulas (torch.optim.Adam and AdamW without amsgrad), every
// operation rounded to float32; t is the number of the update, from 1:
//
//   g += weight_decay * w                          adam, if weight_decay > 0
//   w *= 1 - learning_rate * weight_decay          adamw, if weight_decay > 0
//   m = beta1 * m + (1 - beta1) * g                begins as 0
//   v = beta2 * v + (1 - beta2) * g^2              begins as 0
//   w -= learning_rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//
// Factors without g, m, v or w are computed in double, with powers by squaring, and rounded once.
// `epsilon` is added after the correction of v (MXNet's adam adds it before). A skipped step is not
// an update.
//
// Sources: Kingma & Ba 2015, arXiv:1412.6980, algorithm 1; Loshchilov & Hutter 2019,
// arXiv:1711.05101, algorithm 2.
#ifndef CAPSTAN_TRAINING_OPTIM_ADAM_H_
#define CAPSTAN_TRAINING_OPTIM_ADAM_H_

#include <optional>

#include "absl/status/statusor.h"
#include "training/optim/adam_rule.h"
#include "training/optim/optimizer.h"

namespace capstan::training {

struct AdamOptions {
  double beta1 = 0.9;       // [0, 1)
  double beta2 = 0.999;     // [0, 1)
  double epsilon = 1e-8;    // [1e-30, 1000]
  double weight_decay = 0;  // >= 0, finite
  bool decoupled = false;   // adamw
};

class Adam final : public Optimizer {
 public:
  // InvalidArgument: an option outside its range.
  static absl::StatusOr<Adam> Create(const AdamOptions& options, const UpdateOptions& update = {});

  int state_floats_per_weight() const override { return 2; }  // m, v
  void Apply(float* weights_out, const float* weights_in, const float* gradient, float* state,
             size_t n, const RuleStep& step) const override;
  std::optional<RuleNumbers> Numbers(const RuleStep& step) const override;

 private:
  Adam(const AdamOptions& options, const UpdateOptions& update)
      : Optimizer(update), options_(options) {}

  AdamConstants Constants(const RuleStep& step) const;
  bool DecaysIn(const RuleStep& step) const { return options_.weight_decay > 0 && step.decay; }

  AdamOptions options_;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_ADAM_H_
