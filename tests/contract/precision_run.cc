#include "tests/contract/precision_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace capstan::testing {

void RoundTo8Bits(std::vector<float>& values) {
  for (float& value : values) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x8000u) & 0xffff0000u;
    std::memcpy(&value, &bits, sizeof value);
  }
}

Numbers Plain(const Problem& problem, double scale) {
  std::vector<Doubles> parameters;
  for (const training::Parameter& parameter : problem.graph.parameters()) {
    const float* const first = problem.weights.data() + problem.layout.Find(parameter.name)->offset;
    parameters.emplace_back(first, first + parameter.elements);
  }
  training::SampleInfo draws;
  draws.ids = problem.ids.data();
  draws.seed = problem.draw_seed;
  draws.epoch = problem.epoch;
  draws.targets = problem.targets.data();
  ReferenceResult want =
      RunReference(problem.graph, parameters, {problem.images.begin(), problem.images.end()},
                   problem.labels, scale, draws);
  for (size_t p = 0; p < want.gradients.size(); ++p) {
    if (!problem.graph.parameters()[p].statistic) continue;
    for (double& value : want.gradients[p]) value *= scale * static_cast<double>(problem.count);
  }
  return {want.loss_sum, want.logits, want.gradients};
}

absl::StatusOr<Numbers> OnDevice(engine::Device& device, const Problem& problem,
                                 engine::Precision precision, double scale) {
  engine::PlanOptions options;
  options.max_batch = problem.count;
  options.precision = precision;
  absl::StatusOr<std::unique_ptr<engine::Plan>> plan =
      device.Compile(problem.graph, problem.layout, options);
  if (!plan.ok()) return plan.status();
  absl::Status status = (*plan)->LoadWeights(problem.weights.data());
  if (!status.ok()) return status;
  std::vector<float> logits(problem.count * problem.graph.num_classes());
  status = (*plan)->Predict(problem.batch(), logits.data());
  if (!status.ok()) return status;
  std::vector<float> gradient(problem.layout.total_floats());
  const absl::StatusOr<engine::LaneResult> result =
      (*plan)->ComputeLane(problem.batch(), scale, gradient.data());
  if (!result.ok()) return result.status();
  Numbers numbers = {result->loss_sum, {logits.begin(), logits.end()}, {}};
  for (const training::Parameter& parameter : problem.graph.parameters()) {
    const float* const first = gradient.data() + problem.layout.Find(parameter.name)->offset;
    numbers.gradients.emplace_back(first, first + parameter.elements);
  }
  return numbers;
}

// As a fraction of the largest value of `want` and `typical`.
double Error(const Doubles& got, const Doubles& want, double typical) {
  double largest = typical, error = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(want[i]));
    error = std::max(error, std::isfinite(got[i]) ? std::abs(got[i] - want[i]) : INFINITY);
  }
  return error / largest;
}

}  // namespace capstan::testing
