// The weights of a checkpoint, in memory.
#ifndef CAPSTAN_CLIENT_CHECKPOINT_WEIGHTS_H_
#define CAPSTAN_CLIENT_CHECKPOINT_WEIGHTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "capstan/job/v1/job_service.pb.h"
#include "client/checkpoint_files.h"
#include "client/job_client.h"
#include "training/chunks/flat_layout.h"
#include "training/graph/graph.h"

namespace capstan::client {

struct CheckpointWeights {
  FoundCheckpoint found;
  job::v1::Job job;
  training::Graph graph;        // of the job
  training::FlatLayout layout;  // of the graph
  std::vector<float> values;    // [layout.total_floats()]; empty until FetchWeights
};

// Finds the checkpoint that `name` means (checkpoint_name.h) and its job's network. NotFound: the
// message lists the steps that exist.
absl::StatusOr<CheckpointWeights> FindWeights(JobClient& client, const std::string& name);

// Fetches the values and compares them with the hashes of the checkpoint. Errors of ExportWeights.
absl::Status FetchWeights(JobClient& client, CheckpointWeights& weights);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_CHECKPOINT_WEIGHTS_H_
