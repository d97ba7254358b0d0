// LAMB: Adam's direction, and a trust ratio for each tensor. Every operation on a weight is rounded
// to float32; t is the number of the update, from 1:
//
//   m = beta1 * m + (1 - beta1) * g                                        begins as 0
//   v = beta2 * v + (1 - beta2) * g^2                                      begins as 0
//   u = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + epsilon) + weight_decay * w
//   ratio = |w| / |u|                                  norms of the tensor, in double
//   w -= learning_rate * ratio * u
//
// |w| is first brought into [lower_bound, upper_bound]. The ratio is 1 where |w| or |u| is 0, as for
// biases in the first step. Without bias_correction the factors with t are 1. learning_rate * ratio
// is computed in double and rounded once.
//
// The formula and its defaults are those of mxnet.optimizer.LAMB.
//
// Source: You et al. 2020, arXiv:1904.00962, algorithm 2.
#ifndef CAPSTAN_TRAINING_OPTIM_LAMB_H_
#define CAPSTAN_TRAINING_OPTIM_LAMB_H_

#include <optional>

#include "absl/status/statusor.h"
#include "training/optim/lamb_rule.h"
#include "training/optim/optimizer.h"
#include "training/optim/trust_rule.h"

namespace capstan::training {

struct LambOptions {
  double beta1 = 0.9;       // [0, 1)
  double beta2 = 0.999;     // [0, 1)
  double epsilon = 1e-6;    // [1e-30, 1000]
  double weight_decay = 0;  // >= 0, finite
  bool bias_correction = true;
  // Of |w|; unset: no bound. In [0, 1e30], and the lower one is not above the upper one.
  std::optional<double> lower_bound, upper_bound;
};

class Lamb final : public Optimizer, public TrustRule {
 public:
  // InvalidArgument: an option outside its range.
  static absl::StatusOr<Lamb> Create(const LambOptions& options, const UpdateOptions& update = {});

  int state_floats_per_weight() const override { return 2; }  // m, v
  void Apply(float* weights_out, const float* weights_in, const float* gradient, float* state,
             size_t n, const RuleStep& step) const override;

  const TrustRule* trust_rule() const override { return this; }
  bool scales_all_tensors() const override { return true; }
  // Of u.
  double DirectionSquares(const float* weights, const float* gradient, const float* state, size_t n,
                          const RuleStep& step) const override;
  double Ratio(const TensorNorms& norms, bool decay) const override;

 private:
  Lamb(const LambOptions& options, const UpdateOptions& update)
      : Optimizer(update), options_(options) {}

  LambConstants Constants(const RuleStep& step) const;

  LambOptions options_;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_LAMB_H_
