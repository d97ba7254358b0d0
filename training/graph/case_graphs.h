// Graphs of operators that no built-in model has, for tests of code that runs any graph.
#ifndef CAPSTAN_TRAINING_GRAPH_CASE_GRAPHS_H_
#define CAPSTAN_TRAINING_GRAPH_CASE_GRAPHS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "training/graph/graph.h"

namespace capstan::training {

struct AttentionOptions {
  int64_t layers = 1;
  int64_t tokens = 5, inputs = 3;  // the input is [tokens * inputs]
  int64_t heads = 2, head_width = 4;
  int64_t classes = 10;
};

// A network of attention: a product with a matrix and a position embedding; in each layer
// normalization, attention with a trained mask, and two dense layers with Gelu, each added to what
// went in; then the mean over the tokens. Biases are Parameters.
absl::StatusOr<Graph> AttentionGraph(const AttentionOptions& options = {});

// Two images of 3 x 4 x 6 from a dense layer over 7 numbers, through every operator that computes
// element by element, moves numbers or sums them within a sample. Parameters are first and second
// inputs of them, along some axes, and one Parameter has two readers.
absl::StatusOr<Graph> ArithmeticGraph();

// Rows of tables for 12 numbers: of a Parameter with one reader, of one with two, and of a value
// that each sample computes. Some indices name no row. Then triangles, whole numbers and constants.
absl::StatusOr<Graph> EmbeddingGraph();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_GRAPH_CASE_GRAPHS_H_
