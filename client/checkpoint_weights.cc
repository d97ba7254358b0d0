#include "client/checkpoint_weights.h"

#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "param_store/checkpoint/base_weights.h"
#include "param_store/checkpoint/weights_file.h"
#include "services/files/files.h"
#include "training/spec/resolve.h"

namespace capstan::client {

absl::StatusOr<CheckpointWeights> FindWeights(JobClient& client, const std::string& name) {
  auto found = LookUpCheckpoint(client, name);
  if (!found.ok()) return found.status();
  auto job = client.Get(found->job_id);
  if (!job.ok()) return job.status();
  auto graph = training::spec::MakeGraph(job->resolved());
  if (!graph.ok()) return graph.status();
  auto layout = training::spec::MakeLayout(job->resolved());
  if (!layout.ok()) return layout.status();
  return CheckpointWeights{
      *std::move(found), *std::move(job), *std::move(graph), *std::move(layout), {}};
}

absl::Status FetchWeights(JobClient& client, CheckpointWeights& weights) {
  const absl::StatusOr<std::string> folder = services::MakePrivateDir("capstan-weights");
  if (!folder.ok()) return folder.status();
  const absl::Cleanup remove = [&folder] {
    std::error_code ignored;
    std::filesystem::remove_all(*folder, ignored);
  };
  param_store::ExportRequest request;
  request.folder = weights.found.saved.uri();
  request.job_id = weights.found.job_id;
  request.training_digest = weights.job.resolved().training_digest();
  request.layout = &weights.layout;
  request.open = [&](const std::string& file) {
    return OpenRemoteFile(client, weights.found, file);
  };
  const std::string path = *folder + "/weights.safetensors";
  param_store::ExportedWeights exported;
  param_store::BaseWeightsError error = param_store::ExportWeights(request, path, &exported);
  if (!error.status.ok()) return error.status;
  param_store::BaseWeightsOptions base;
  base.initial_weights = "file://" + path;
  const int64_t floats = weights.layout.total_floats();
  weights.values.resize(static_cast<size_t>(floats));
  error = param_store::FillBaseWeights(weights.layout, base, {0, floats},
                                       absl::MakeSpan(weights.values));
  return error.status;
}

}  // namespace capstan::client
