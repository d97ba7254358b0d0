#include "gpu_worker/engine/cpu/blocked/squared_error.h"

#include "gpu_worker/engine/cpu/blocked/math.h"

namespace capstan::engine {

double SquaredErrors(const SquaredErrorCall& call) {
  const auto outputs = static_cast<double>(call.outputs);
  const double scale = call.scale * 2 / outputs;
  double loss = 0;
  for (int64_t l = 0; l < call.there; ++l) {
    double sum = 0;
    for (int64_t k = 0; k < call.outputs; ++k) {
      const int64_t place = k * kSideBySide + l;
      const double error = static_cast<double>(call.outcome[place]) -
                           static_cast<double>(call.targets[l * call.outputs + k]);
      sum += error * error;
      if (call.gradient != nullptr) call.gradient[place] = static_cast<float>(error * scale);
    }
    loss += sum / outputs;
  }
  for (int64_t l = call.there; call.gradient != nullptr && l < kSideBySide; ++l) {
    for (int64_t k = 0; k < call.outputs; ++k) call.gradient[k * kSideBySide + l] = 0;
  }
  return loss;
}

}  // namespace capstan::engine
