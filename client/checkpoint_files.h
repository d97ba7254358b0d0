// Finds checkpoints on the coordinator's host by name and reads their files over gRPC.
//
// A file is fetched in pieces. Each piece is a call of its own with the connection's timeout. After
// a cut, the next call continues behind the last byte received. The fetch is given up if no byte
// arrives for the connection's timeout. SIGINT and SIGTERM cancel it (Cancelled).
#ifndef CAPSTAN_CLIENT_CHECKPOINT_FILES_H_
#define CAPSTAN_CLIENT_CHECKPOINT_FILES_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "capstan/job/v1/job_service.pb.h"
#include "client/checkpoint_name.h"
#include "client/job_client.h"
#include "param_store/checkpoint/file_store.h"

namespace capstan::client {

struct FoundCheckpoint {
  std::string job_id;
  job::v1::SavedCheckpoint saved;
};
// Finds the checkpoint that `text` names. NotFound: the message lists the steps that exist.
absl::StatusOr<FoundCheckpoint> LookUpCheckpoint(JobClient& client, const std::string& text);

// Opens one file of the checkpoint. Uses memory for one piece of 8 MiB. Borrows the client.
absl::StatusOr<std::unique_ptr<param_store::InputFile>> OpenRemoteFile(
    JobClient& client, const FoundCheckpoint& checkpoint, const std::string& name);

// Replaces a JOB@STEP in model.initial_weights with the folder of that checkpoint.
absl::Status ResolveInitialWeights(JobClient& client, job::v1::JobSpec& spec);
// InvalidArgument: model.initial_weights is a JOB@STEP, which only a coordinator can look up.
absl::Status CheckNoCheckpointName(const job::v1::JobSpec& spec);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_CHECKPOINT_FILES_H_
