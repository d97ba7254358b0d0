// How a person names a checkpoint: JOB, the newest; JOB@STEP; JOB@LINEAGE-STEP. JOB is that
// of job_name.h.
#ifndef CAPSTAN_CLIENT_CHECKPOINT_NAME_H_
#define CAPSTAN_CLIENT_CHECKPOINT_NAME_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "capstan/job/v1/job_service.pb.h"

namespace capstan::client {

struct CheckpointName {
  std::string job_id;
  std::string which;  // "40" or "1-40"; empty: the newest
};

// InvalidArgument: no job, or what follows the @ is neither.
absl::StatusOr<CheckpointName> ParseCheckpointName(absl::string_view text);

// Whether `initial_weights` of a job file names a checkpoint so, with its step: JOB@STEP, no path.
bool IsCheckpointName(absl::string_view text);

using SavedCheckpoints = google::protobuf::RepeatedPtrField<job::v1::SavedCheckpoint>;
// The newest of `saved`, newest first, that is meant. NotFound: names the steps that there are.
absl::StatusOr<const job::v1::SavedCheckpoint*> FindCheckpoint(const CheckpointName& name,
                                                               const SavedCheckpoints& saved);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_CHECKPOINT_NAME_H_
