// FTRL-Proximal with one rate per weight, in MXNet's formula (mxnet.optimizer.Ftrl), every
// operation rounded to float32:
//
//   sigma = (sqrt(n + g^2) - sqrt(n)) / learning_rate
//   z = z + (g - sigma * w)                        begins as 0
//   n = n + g^2                                    begins as 0
//   w = 0                                          if |z| <= l1, otherwise
//   w = (sign(z) * l1 - z) / ((beta + sqrt(n)) / learning_rate + weight_decay)
//
// learning_rate is the paper's alpha, l1 its lambda1, weight_decay its lambda2. weight_decay is not
// added to g. In a step without decay it counts as 0. Padding stays 0 because its z does.
//
// Each new weight follows from z and n alone. The weight that a job begins with is in no z, so the
// first step replaces it: sigma is |g| / learning_rate there, and with an l1 and a weight_decay of
// 0 the new weight is (|g| * w - learning_rate * g) / (beta + |g|). It is 0 if g is 0. So a beta
// far above the gradients leaves little of the initial weight, as in MXNet.
//
// The rate of a step stands in both places above, as in MXNet. z and n do not depend on later
// rates, so a rate that becomes k times as high multiplies weights by about k at once. A step whose
// rate is below kFtrlLeastRate changes neither weights nor state, because quotients by it may be
// infinite.
//
// Sources: McMahan et al. 2013, "Ad Click Prediction: a View from the Trenches", KDD,
// doi:10.1145/2487575.2488200, algorithm 1; MXNet's documentation of Ftrl and ftrl_update, the same
// in 1.6 and in the last version.
#ifndef CAPSTAN_TRAINING_OPTIM_FTRL_H_
#define CAPSTAN_TRAINING_OPTIM_FTRL_H_

#include <optional>

#include "absl/status/statusor.h"
#include "training/optim/ftrl_rule.h"
#include "training/optim/optimizer.h"

namespace capstan::training {

inline constexpr float kFtrlLeastRate = 1e-30f;

struct FtrlOptions {
  double l1 = 0.01;         // [0, 1e6]
  double beta = 1;          // [1e-30, 1000]
  double weight_decay = 0;  // >= 0, finite
};

class Ftrl final : public Optimizer {
 public:
  // InvalidArgument: an option outside its range.
  static absl::StatusOr<Ftrl> Create(const FtrlOptions& options, const UpdateOptions& update = {});

  int state_floats_per_weight() const override { return 2; }  // z, n
  void Apply(float* weights_out, const float* weights_in, const float* gradient, float* state,
             size_t n, const RuleStep& step) const override;
  std::optional<RuleNumbers> Numbers(const RuleStep& step) const override;

 private:
  Ftrl(const FtrlOptions& options, const UpdateOptions& update)
      : Optimizer(update), options_(options) {}

  FtrlConstants Constants(const RuleStep& step) const;

  FtrlOptions options_;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPTIM_FTRL_H_
