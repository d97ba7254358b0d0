// A network for people and for programs: layers, shapes, parameters, operations. Pure.
#ifndef CAPSTAN_CLIENT_MODEL_DESCRIBE_MODEL_H_
#define CAPSTAN_CLIENT_MODEL_DESCRIBE_MODEL_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "training/graph/graph.h"

namespace capstan::client {

// Of a plan for a CPU of this host, in bytes.
struct ModelMemory {
  int64_t batch = 0;        // samples that are trained on at a time; 0: nothing was planned
  int64_t plan_bytes = 0;   // activations, their gradients, scratch, weights in kernels' layouts
  int64_t float_bytes = 0;  // the weights themselves, and as much for the gradient
};

// What an import has changed, for people.
struct ImportNotes {
  std::string final_activation;             // left out at the end; empty: none
  std::vector<std::string> shared_weights;  // that became a copy for each of their nodes
};
std::string NotesText(const ImportNotes& notes);

// A line of each node, then sums. `width`: see TextTable.
std::string ModelText(const training::Graph& graph, const ModelMemory& memory, int width);

// {"name", "input", "num_classes", "parameters", "statistics", "forward_flops", "training_flops",
// "nodes": [{"name", "operator", "inputs", "output", "parameters": [{"name", "shape",
// "statistic"}], "flops"}]}, and "memory" if it was planned.
nlohmann::ordered_json ModelJson(const training::Graph& graph, const ModelMemory& memory);

// The built-in models with the images that they were published for.
struct BuiltInModel {
  absl::string_view name;
  training::Shape input;
  int64_t num_classes;
};
std::vector<BuiltInModel> BuiltInModels();

// "3x32x32", of 1 to 2^20 each. InvalidArgument: anything else.
absl::StatusOr<training::Shape> ParseImageShape(absl::string_view text);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_MODEL_DESCRIBE_MODEL_H_
