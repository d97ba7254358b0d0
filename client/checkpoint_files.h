// Checkpoints on the coordinator's host, as this host sees them: found by name, their files read over
// gRPC.
//
// A file comes in pieces, each a call of its own with the connection's timeout. After a cut the next
// call goes on behind the last byte that came; without a byte for the connection's timeout it is given
// up. SIGINT and SIGTERM break it off (Cancelled).
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
// What `text` names. NotFound: names the steps that there are.
absl::StatusOr<FoundCheckpoint> LookUpCheckpoint(JobClient& client, const std::string& text);

// One file of it. Memory: one piece of 8 MiB. Borrows the client.
absl::StatusOr<std::unique_ptr<param_store::InputFile>> OpenRemoteFile(
    JobClient& client, const FoundCheckpoint& checkpoint, const std::string& name);

// Puts the folder of the checkpoint in the place of a JOB@STEP in model.initial_weights.
absl::Status ResolveInitialWeights(JobClient& client, job::v1::JobSpec& spec);
// InvalidArgument: it has a JOB@STEP, which only the coordinator that has JOB can look up.
absl::Status CheckNoCheckpointName(const job::v1::JobSpec& spec);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_CHECKPOINT_FILES_H_
