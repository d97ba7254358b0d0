// A graph in double precision and plain loops: what devices are compared with.
#ifndef CAPSTAN_TESTS_CONTRACT_NAIVE_NETWORK_H_
#define CAPSTAN_TESTS_CONTRACT_NAIVE_NETWORK_H_

#include <cstdint>
#include <vector>

#include "training/graph/graph.h"

namespace capstan::testing {

using Doubles = std::vector<double>;

struct NaiveResult {
  double loss_sum = 0;
  int64_t correct = 0;
  Doubles logits;                  // [n, classes]
  std::vector<Doubles> gradients;  // by parameter, of loss_scale * loss_sum
};

// `images` [n, input shape], `labels` [n], `parameters` as graph.parameters(). Refuses nothing: the
// graph has been checked.
NaiveResult RunNaive(const training::Graph& graph, const std::vector<Doubles>& parameters,
                     const Doubles& images, const std::vector<int32_t>& labels, double loss_scale);

}  // namespace capstan::testing

#endif  // CAPSTAN_TESTS_CONTRACT_NAIVE_NETWORK_H_
