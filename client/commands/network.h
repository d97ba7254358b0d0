// The network that a person names: a built-in model, an ONNX file, or that of a job file.
#ifndef CAPSTAN_CLIENT_COMMANDS_NETWORK_H_
#define CAPSTAN_CLIENT_COMMANDS_NETWORK_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "client/console.h"
#include "client/model/describe_model.h"
#include "training/graph/graph.h"

namespace capstan::client {

struct NetworkFlags {
  std::optional<std::string> input;  // "3x32x32", what the network reads
  std::optional<int> num_classes;
  // Names of the two flags, for messages.
  std::string input_flag = "--input";
  std::string classes_flag = "--num-classes";
};

struct Network {
  training::Graph graph;
  std::optional<job::v1::JobSpec> spec;  // of a job file, with all defaults
  ImportNotes notes;
};

// Whether there is a built-in model of this name.
bool IsBuiltInModel(const std::string& name);

// Without flags: the images and classes that the model was published for. NotFound: no such model;
// the message lists the names. InvalidArgument: a flag, or the model does not accept it.
absl::StatusOr<Network> BuiltInNetwork(const std::string& name, const NetworkFlags& flags);

// `file` ends with .onnx, where a network of one output gets the loss mean_squared_error, or is a
// job file, or "-" for a job file on standard input. The input of a job's network is that of the
// flag, or follows from the job file, or is read from the data set. Errors of LoadJob and
// ReadOnnxFile; NotFound also if the data is not on this host and no flag says the input.
absl::StatusOr<Network> NetworkOfFile(const std::string& file, const NetworkFlags& flags,
                                      const Console& console);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COMMANDS_NETWORK_H_
