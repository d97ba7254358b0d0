// A network as a message of a job specification: `model.graph`, and any Graph as such a message.
//
// Messages may be anybody's: nothing is allocated that depends on a number in them, and what is wrong is said
// with the field, what it has and what it may have. Strings in sentences hold no control character.
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

// What needs no data set: sizes, names, which value each node reads, operators, attributes. At most 16 problems;
// empty: none.
std::vector<GraphProblem> CheckGraph(const job::v1::Graph& message);

// Fills in inputs, outputs and attributes that have a default, and sorts attributes by name. CheckGraph has no problem
// with the message.
void FillGraphDefaults(job::v1::Graph& message);

// InvalidArgument: CheckGraph has a problem, or the nodes do not fit the shape of the input.
absl::StatusOr<Graph> GraphOf(const job::v1::Graph& message, const Shape& input_shape);

// With everything that has a default. GraphOf makes an equal graph of it.
job::v1::Graph ToMessage(const Graph& graph);

// What devices of GPUs do not carry out of the model: "node bn1 (BatchNormalization)", "resnet18_v1"; empty: nothing that
// could be told without shapes. They carry out chains (gpu_worker/engine/device/chain.h). Takes time by the nodes, and
// memory for what it returns alone.
std::string NotOnGpus(const job::v1::Model& model);

// What couples the samples of a lane: "node bn1 (BatchNormalization)", "resnet18_v1"; empty: nothing. As NotOnGpus in
// cost.
std::string SampleCoupling(const job::v1::Model& model);

}  // namespace capstan::training::spec

#endif  // CAPSTAN_TRAINING_SPEC_GRAPH_MESSAGE_H_
