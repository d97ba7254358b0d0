// Computes a graph by the references of its operators, in double, to compare devices with.
#ifndef CAPSTAN_TESTS_CONTRACT_REFERENCE_NETWORK_H_
#define CAPSTAN_TESTS_CONTRACT_REFERENCE_NETWORK_H_

#include <cstdint>
#include <vector>

#include "training/graph/graph.h"

namespace capstan::testing {

using Doubles = std::vector<double>;

struct ReferenceResult {
  double loss_sum = 0;
  int64_t correct = 0;
  Doubles logits;  // [n, classes]
  // By parameter: the gradient of loss_scale * loss_sum. For a running statistic, the batch's own
  // value.
  std::vector<Doubles> gradients;
};

// `images` [n, input shape], `labels` [n], `parameters` as in graph.parameters(). Refuses nothing,
// since the graph has been checked. `draws`: ids, seed and epoch; without ids they are 0 to n - 1.
// Also the targets, for a loss that takes numbers, which counts no sample as correct.
ReferenceResult RunReference(const training::Graph& graph, const std::vector<Doubles>& parameters,
                             const Doubles& images, const std::vector<int32_t>& labels,
                             double loss_scale, const training::SampleInfo& draws = {});

// Forward and loss as in evaluation: reads running statistics and draws nothing. Has no gradients.
ReferenceResult EvaluateByReference(const training::Graph& graph,
                                    const std::vector<Doubles>& parameters, const Doubles& images,
                                    const std::vector<int32_t>& labels,
                                    const float* targets = nullptr);

}  // namespace capstan::testing

#endif  // CAPSTAN_TESTS_CONTRACT_REFERENCE_NETWORK_H_
