// CheckpointService on gRPC's callback API: files of checkpoints go out to the people whose they are,
// and checkpoints are deleted (docs/decisions/2026-11-23-tensors-of-any-checkpoint.md).
//
// Who may, and which checkpoint lies where, the core says on the strand. Files are read on threads of
// their disk, one block at a time for each call; gRPC's flow control holds back who is faster than the
// caller. A deletion touches no disk of jobs: it is durable when it is answered, and the folder is
// removed behind that.
//
// A disk is a mount, or one of the coordinator's checkpoint roots. One that hangs keeps
// FileCalls::kThreads threads and kMaxCalls downloads, which are over for their callers when these
// leave, or after FileCalls::kPatience for a block; further ones are refused with UNAVAILABLE and the
// disk's root. The end of the coordinator waits for none of them.
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
  static constexpr size_t kMostOfJob = 8;  // downloads that are not over
  // Downloads from one disk, each with a block of 512 KiB at most: 64 MiB.
  static constexpr size_t kMaxCalls = 128;

  // Borrows the coordinator. `roots`: absolute folders that checkpoints lie in.
  CheckpointServiceImpl(Coordinator& coordinator, std::vector<std::string> roots)
      : coordinator_(coordinator), roots_(std::move(roots)), calls_(coordinator, kMaxCalls) {}

  grpc::ServerWriteReactor<job::v1::DownloadCheckpointResponse>* DownloadCheckpoint(
      grpc::CallbackServerContext* context,
      const job::v1::DownloadCheckpointRequest* request) override;
  grpc::ServerUnaryReactor* DeleteCheckpoint(grpc::CallbackServerContext* context,
                                             const job::v1::DeleteCheckpointRequest* request,
                                             job::v1::DeleteCheckpointResponse* response) override;

  // What FileCalls says.
  void Drain() { calls_.Drain(); }
  bool Stop(absl::Duration patience) { return calls_.Stop(patience); }

 private:
  friend class CheckpointDownload;

  // On the strand. ResourceExhausted: kMostOfJob are under way.
  absl::Status Count(const std::string& job_id, std::weak_ptr<FileCall> call);

  Coordinator& coordinator_;
  const std::vector<std::string> roots_;
  // By job; some of them are over. Of the strand.
  std::map<std::string, std::vector<std::weak_ptr<FileCall>>> downloads_;
  FileCalls calls_;  // they use all of the above: last
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_CHECKPOINT_SERVICE_H_
