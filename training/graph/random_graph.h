// Graphs drawn from the cases of every operator, for tests of code that reads or runs any graph.
#ifndef CAPSTAN_TRAINING_GRAPH_RANDOM_GRAPH_H_
#define CAPSTAN_TRAINING_GRAPH_RANDOM_GRAPH_H_

#include <cstddef>
#include <cstdint>

#include "training/graph/graph.h"

namespace capstan::training {

struct RandomGraphOptions {
  size_t least_tries = 20;  // nodes drawn; a node that does not fit its inputs is left out
  size_t most_tries = 119;
  int64_t most_elements = 100000;  // of a value
};

// Draws operators and attributes from the table's cases, each applied to some of the latest values
// that it fits. The second factor of a product lies within [-1, 1], and a divisor within [0.5, 2].
// Values without a reader are joined before the loss, which is that of a sequence for one seed in
// four and takes numbers for one in eight. A function of seed and options, the same on every
// machine.
Graph RandomGraph(uint64_t seed, const RandomGraphOptions& options = {});

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_GRAPH_RANDOM_GRAPH_H_
