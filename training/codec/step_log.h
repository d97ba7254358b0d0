// One line of metrics.jsonl, the log of steps.
#ifndef CAPSTAN_TRAINING_CODEC_STEP_LOG_H_
#define CAPSTAN_TRAINING_CODEC_STEP_LOG_H_

#include <cstdint>
#include <optional>
#include <string>

namespace capstan::training {

struct StepLogLine {
  int64_t lineage = 0;
  int64_t step = 0;   // from 0
  int64_t epoch = 0;  // from 1
  double loss = 0.0;  // mean over the step's true samples, before the update
  double learning_rate = 0.0;
  int64_t samples = 0;   // true samples of the step
  double seconds = 0.0;  // wall time of the step
  // The Euclidean norm of the gradient before clipping. Only of jobs that clip by norm, and of
  // steps that are not skipped.
  std::optional<double> gradient_norm;
};

// The line with its newline: {"lineage":..,"step":..,"epoch":..,"loss":..,"learning_rate":..,
// "samples":..,"seconds":..}, with "gradient_norm":.. at its end if it is set. Floating-point
// numbers are written as %.9g, which restores a float32 exactly. A non-finite number becomes null,
// because JSON has no notation for it. Pure.
std::string FormatStepLogLine(const StepLogLine& line);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_CODEC_STEP_LOG_H_
