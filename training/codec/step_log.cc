#include "training/codec/step_log.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace capstan::training {
namespace {

std::string Number(double value) {
  return std::isfinite(value) ? absl::StrFormat("%.9g", value) : "null";
}

}  // namespace

std::string FormatStepLogLine(const StepLogLine& line) {
  const std::string norm = line.gradient_norm.has_value()
                               ? absl::StrCat(", \"gradient_norm\": ", Number(*line.gradient_norm))
                               : "";
  return absl::StrFormat(
      "{\"lineage\": %d, \"step\": %d, \"epoch\": %d, \"loss\": %s, \"learning_rate\": %s, "
      "\"samples\": %d, \"seconds\": %s%s}\n",
      line.lineage, line.step, line.epoch, Number(line.loss), Number(line.learning_rate),
      line.samples, Number(line.seconds), norm);
}

}  // namespace capstan::training
