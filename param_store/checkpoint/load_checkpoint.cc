#include "param_store/checkpoint/load_checkpoint.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "param_store/checkpoint/checkpoint_reader.h"
#include "services/check/check.h"
#include "training/spec/lead_messages.h"

namespace capstan::param_store {

BaseWeightsError LoadCheckpoint(const CheckpointRequest& request, absl::Span<float> weights,
                                absl::Span<float> state, LoadedCheckpoint* loaded) {
  const int64_t size = training::RangeOf(*request.layout, request.run).size;
  CAPSTAN_CHECK(static_cast<int64_t>(weights.size()) == size);
  CAPSTAN_CHECK(static_cast<int64_t>(state.size()) == size * request.state_floats_per_weight);
  CAPSTAN_CHECK(!request.job_id.empty());
  CheckpointPass pass;
  pass.folder = request.folder;
  pass.job_id = request.job_id;
  pass.training_digest = request.training_digest;
  pass.layout = request.layout;
  pass.run = request.run;
  pass.state_floats_per_weight = request.state_floats_per_weight;
  pass.open = [&request](const std::string& name) {
    return request.files->OpenCheckpointFile(request.folder, name);
  };
  pass.marks_per_chunk = request.marks_per_chunk;
  loaded->marks.resize(request.run.chunk_count * request.marks_per_chunk);
  pass.take = [weights, state, loaded](CheckpointPart part, int64_t at, absl::string_view bytes) {
    auto* const to =
        part == CheckpointPart::kMarks
            ? reinterpret_cast<char*>(loaded->marks.data())
            : reinterpret_cast<char*>((part == CheckpointPart::kState ? state : weights).data());
    std::memcpy(to + at, bytes.data(), bytes.size());
    return absl::OkStatus();
  };
  training::Manifest manifest;
  BaseWeightsError error = ReadCheckpoint(pass, &manifest);
  if (!error.reason.empty()) return error;
  absl::StatusOr<training::LeadSnapshot> snapshot =
      training::spec::DecodeSnapshot(manifest.lead_snapshot);
  if (!snapshot.ok()) {
    return {"CheckpointCorrupt",
            absl::DataLossError(
                absl::StrCat(request.folder, "/manifest.json: ", snapshot.status().message()))};
  }
  loaded->version = manifest.step;
  loaded->snapshot = *std::move(snapshot);
  return {};
}

}  // namespace capstan::param_store
