// How a person names a checkpoint. JOB is the newest checkpoint of the job. JOB@STEP and
// JOB@LINEAGE-STEP name one. JOB@best is the one with the best evaluation.metric among
// those that `checkpoint.keep_best` keeps. job_name.h says what JOB may be.
#ifndef CAPSTAN_CLIENT_CHECKPOINT_NAME_H_
#define CAPSTAN_CLIENT_CHECKPOINT_NAME_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "capstan/job/v1/job_service.pb.h"

namespace capstan::client {

struct CheckpointName {
  std::string job_id;
  std::string which;  // "40", "1-40" or "best"; empty: the newest
};

// InvalidArgument: there is no job, or the text after the @ is none of these.
absl::StatusOr<CheckpointName> ParseCheckpointName(absl::string_view text);

// Whether `initial_weights` of a job file names a checkpoint (JOB@STEP or JOB@best) and not a path.
bool IsCheckpointName(absl::string_view text);

using SavedCheckpoints = google::protobuf::RepeatedPtrField<job::v1::SavedCheckpoint>;
// Finds the checkpoint that `name` means in `saved`, which is sorted newest first. If several
// match, the newest is returned. NotFound: the message lists the steps that exist, or says that no
// checkpoint is the best.
absl::StatusOr<const job::v1::SavedCheckpoint*> FindCheckpoint(const CheckpointName& name,
                                                               const SavedCheckpoints& saved);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_CHECKPOINT_NAME_H_
