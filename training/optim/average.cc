#include "training/optim/average.h"

namespace capstan::training {

void Average::Apply(float* weights_out, const float* weights_in, const float* gradient, float*,
                    size_t n, const RuleStep&) const {
  for (size_t i = 0; i < n; ++i) weights_out[i] = weights_in[i] - gradient[i];
}

}  // namespace capstan::training
