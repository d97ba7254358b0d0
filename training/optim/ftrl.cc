#include "training/optim/ftrl.h"

#include <algorithm>

#include "services/check/check.h"
#include "training/optim/rule_loop.h"

// This file is built with -O3 -fno-math-errno, as rule_loop.h says, and with -fno-trapping-math
// (training/CMakeLists.txt says why).
namespace capstan::training {

absl::StatusOr<Ftrl> Ftrl::Create(const FtrlOptions& options, const UpdateOptions& update) {
  for (const absl::Status& status :
       {WantBetween("l1", options.l1, 0, 1e6), WantBetween("beta", options.beta, 1e-30, 1000),
        WantDecay(options.weight_decay)}) {
    if (!status.ok()) return status;
  }
  return Ftrl(options, update);
}

FtrlConstants Ftrl::Constants(const RuleStep& step) const {
  return {static_cast<float>(options_.l1), static_cast<float>(options_.beta),
          static_cast<float>(step.decay ? options_.weight_decay : 0),
          static_cast<float>(step.learning_rate)};
}

std::optional<RuleNumbers> Ftrl::Numbers(const RuleStep& step) const {
  const FtrlConstants c = Constants(step);
  if (c.learning_rate < kFtrlLeastRate) return RuleNumbers();
  return NumbersOf(RuleForm::kFtrl, /*decay=*/false, c);
}

void Ftrl::Apply(float* weights_out, const float* weights_in, const float* gradient, float* state,
                 size_t n, const RuleStep& step) const {
  CAPSTAN_CHECK(state != nullptr || n == 0);
  const FtrlConstants c = Constants(step);
  if (c.learning_rate < kFtrlLeastRate) {
    if (weights_out != weights_in) std::copy_n(weights_in, n, weights_out);
    return;
  }
  RunRule<2>(weights_out, weights_in, gradient, state, n,
             [c](float w, float g, float* s) { return FtrlUpdate(w, g, s, c, IeeeRoot()); });
}

}  // namespace capstan::training
