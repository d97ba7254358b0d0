// LARS: stochastic gradient descent with momentum, and a trust ratio for each tensor. Every operation
// on a weight is rounded to float32:
//
//   ratio = eta * |w| / (|g| + weight_decay * |w| + epsilon)     norms of the tensor, in double
//   v = momentum * v + ratio * (g + weight_decay * w)            v begins as 0
//   w -= learning_rate * v
//
// The ratio is 1 for biases, scales and shifts, and where |w| or |g| is 0. A tensor that is not
// decayed counts with a weight_decay of 0 in both places.
//
// This is mxnet.optimizer.LARS with its defaults, except epsilon, which is 0 in MXNet 1.9. One of them
// is momentum_correction: there v = momentum * (rate / last rate) * v - rate * ratio * (g + weight_decay * w), and w += v.
//
// Source: You, Gitman & Ginsburg 2017, arXiv:1708.03888, algorithm 1 (with the rate inside v).
#ifndef CAPSTAN_TRAINING_OPTIM_LARS_H_
#define CAPSTAN_TRAINING_OPTIM_LARS_H_

#include "absl/status/statusor.h"
#include "training/optim/optimizer.h"
#include "training/optim/trust_rule.h"

namespace capstan::training {

struct LarsOptions {
  double momentum = 0;      // [0, 1)
  double weight_decay = 0;  // >= 0, finite
  double eta = 0.001;       // [1e-30, 1000]; the trust coefficient
  double epsilon = 1e-8;    // [1e-30, 1000]
};

class Lars final : public Optimizer, public TrustRule {
 public:
  // InvalidArgument: an option outside its range.
  static absl::StatusOr<Lars> Create(const LarsOptions& options, const UpdateOptions& update = {});

  // 1 with momentum, else 0.
  int state_floats_per_weight() const override { return options_.momentum > 0 ? 1 : 0; }
  void Apply(float* weights_out, const float* weights_in, const float* gradient, float* state,
             size_t n, const RuleStep& step) const override;

  const TrustRule* trust_rule() const override { return this; }
  bool scales_all_tensors() const override { return false; }
  // Of the gradient. It is proportional to it, and reads nothing else.
  double DirectionSquares(const float* weights, const float* gradient, const float* state, size_t n,
                          const RuleStep& step) const override;
  double Ratio(const TensorNorms& norms, bool decay) const override;

 private:
  Lars(const LarsOptions& options, const UpdateOptions& update)
      : Optimizer(update), options_(options) {}

  LarsOptions options_;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_LARS_H_
