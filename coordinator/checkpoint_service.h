// CheckpointService on gRPC's callback API: sends files of checkpoints to their owners and deletes
// checkpoints (docs/decisions/2026-11-23-tensors-of-any-checkpoint.md).
//
// The core decides, on the strand, who may call, and knows where each checkpoint is. Files are read
// on threads of their disk, one block at a time per call. gRPC's flow control stops reading ahead
// of a slow caller. A deletion touches no disk of jobs: it is durable when it is answered, and the
// folder is removed later.
//
// A disk is a mount, or one of the coordinator's checkpoint roots. A hung disk blocks at most
// FileCalls::kThreads threads and kMaxCalls downloads. For its caller, such a download ends when
// the caller leaves, or when no block came for FileCalls::kPatience. Further downloads are refused
// with UNAVAILABLE and the name of the disk's root. The coordinator does not wait for them when it
// ends.
//
// Thread-safe.
#ifndef CAPSTAN_COORDINATOR_CHECKPOINT_SERVICE_H_
#define CAPSTAN_COORDINATOR_CHECKPOINT_SERVICE_H_

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "capstan/job/v1/checkpoint_service.grpc.pb.h"
#include "coordinator/coordinator.h"
#include "coordinator/file_call.h"

namespace capstan::coordinator {

class CheckpointServiceImpl final : public job::v1::CheckpointService::CallbackService {
 public:
  static constexpr size_t kMostOfJob = 8;  // downloads in progress
  // Downloads from one disk. Each holds a block of at most 512 KiB, 64 MiB together.
  static constexpr size_t kMaxCalls = 128;

  // Borrows the coordinator. `roots`: absolute folders that may contain checkpoints.
  CheckpointServiceImpl(Coordinator& coordinator, std::vector<std::string> roots)
      : coordinator_(coordinator), roots_(std::move(roots)), calls_(coordinator, kMaxCalls) {}

  grpc::ServerWriteReactor<job::v1::DownloadCheckpointResponse>* DownloadCheckpoint(
      grpc::CallbackServerContext* context,
      const job::v1::DownloadCheckpointRequest* request) override;
  grpc::ServerUnaryReactor* DeleteCheckpoint(grpc::CallbackServerContext* context,
                                             const job::v1::DeleteCheckpointRequest* request,
                                             job::v1::DeleteCheckpointResponse* response) override;

  // See FileCalls.
  void Drain() { calls_.Drain(); }
  bool Stop(absl::Duration patience) { return calls_.Stop(patience); }

 private:
  friend class CheckpointDownload;

  // Strand only. ResourceExhausted: the job has kMostOfJob downloads in progress.
  absl::Status Count(const std::string& job_id, std::weak_ptr<FileCall> call);

  Coordinator& coordinator_;
  const std::vector<std::string> roots_;
  // By job; some calls may be over. Strand only.
  std::map<std::string, std::vector<std::weak_ptr<FileCall>>> downloads_;
  FileCalls calls_;  // last: the calls use all of the above
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_CHECKPOINT_SERVICE_H_
