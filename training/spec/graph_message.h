// A network as a message of a job specification: converts `model.graph` to a Graph and back.
//
// Messages may come from anybody. No allocation depends on a number in them. An error names the
// field, its value and the allowed values. Strings in messages hold no control character.
//
// Threads: functions without state.
#ifndef CAPSTAN_TRAINING_SPEC_GRAPH_MESSAGE_H_
#define CAPSTAN_TRAINING_SPEC_GRAPH_MESSAGE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "training/graph/graph.h"

namespace capstan::training::spec {

struct GraphProblem {
  std::string path;     // model.graph.nodes[3]
  std::string message;  // "is refused: node relu1 (Relu): 2 inputs, want 1"
};

// Checks everything that needs no data set: sizes, names, which value each node reads, operators,
// attributes. Returns at most 16 problems; empty if there is none.
std::vector<GraphProblem> CheckGraph(const job::v1::Graph& message);

// Fills in inputs, outputs and attributes that have a default, and sorts attributes by name.
// CheckGraph must have no problem with the message.
void FillGraphDefaults(job::v1::Graph& message);

// InvalidArgument: CheckGraph has a problem, or the nodes do not fit the shape of the input.
absl::StatusOr<Graph> GraphOf(const job::v1::Graph& message, const Shape& input_shape);

// Includes everything that has a default. GraphOf makes an equal graph from the message.
job::v1::Graph ToMessage(const Graph& graph);

// What couples the samples of a lane, e.g. "node bn1 (BatchNormalization)" or "resnet18_v1". Empty:
// nothing. Takes time proportional to the nodes, and memory only for its result.
std::string SampleCoupling(const job::v1::Model& model);

}  // namespace capstan::training::spec

#endif  // CAPSTAN_TRAINING_SPEC_GRAPH_MESSAGE_H_
