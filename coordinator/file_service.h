// FileService on gRPC's callback API: receives files of jobs into the coordinator's storage and
// sends them.
//
// A call is admitted by its key (file_keys.h), by the role of its certificate, and on the strand by
// the core, which knows the view (core_files.cc). This code builds all paths from numbers and known
// names. All work on disks runs on separate threads, one block at a time per call. gRPC's flow
// control stops a sender that is faster than the disk.
//
// For each kind of call and folder, a hung disk blocks at most FileCalls::kThreads threads and
// kMaxCalls calls. For its caller, such a call ends when the caller leaves, or after
// FileCalls::kPatience (except for uploads, where a large file is hashed). Further calls are
// refused with UNAVAILABLE and the name of the folder.
//
// Thread-safe.
#ifndef CAPSTAN_COORDINATOR_FILE_SERVICE_H_
#define CAPSTAN_COORDINATOR_FILE_SERVICE_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "capstan/file/v1/file.grpc.pb.h"
#include "coordinator/coordinator.h"
#include "coordinator/file_call.h"
#include "coordinator/file_keys.h"

namespace capstan::coordinator {

class FileServiceImpl final : public file::v1::FileService::CallbackService {
 public:
  // Calls of one kind on one job's folder. They count until the disk has answered, even if the
  // caller has left. A job sends fewer files at once. If more tasks look at once, which takes
  // milliseconds, some have to try again.
  static constexpr size_t kMaxCalls = 512;
  // For the first message of an upload.
  static constexpr absl::Duration kHeaderPatience = absl::Seconds(10);

  struct Roots {
    // Absolute folders that may contain initial weights, including those of checkpoints.
    std::vector<std::string> data;
    std::vector<std::string> checkpoints;  // that may contain storage_path
  };
  // Borrows the coordinator.
  FileServiceImpl(Coordinator& coordinator, FileKeys keys, Roots roots,
                  absl::Duration header_patience = kHeaderPatience);

  grpc::ServerWriteReactor<file::v1::LookResponse>* Look(
      grpc::CallbackServerContext* context, const file::v1::LookRequest* request) override;
  grpc::ServerBidiReactor<file::v1::UploadRequest, file::v1::UploadResponse>* Upload(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<file::v1::DownloadResponse>* Download(
      grpc::CallbackServerContext* context, const file::v1::DownloadRequest* request) override;
  grpc::ServerUnaryReactor* AppendLog(grpc::CallbackServerContext* context,
                                      const file::v1::AppendLogRequest* request,
                                      file::v1::AppendLogResponse* response) override;

  // See FileCalls.
  void Drain() { calls_.Drain(); }
  bool Stop(absl::Duration patience) { return calls_.Stop(patience); }

 private:
  template <typename Reactor>
  friend class GrantedCall;
  friend class UploadCall;
  friend class LookCall;
  friend class DownloadCall;
  friend class AppendCall;

  using GrantFn = std::function<void(const absl::StatusOr<core::FileGrant>&)>;
  // Calls `done` on the strand. An error that is known before is returned at once, and then `done`
  // is not called.
  absl::Status Ask(const grpc::CallbackServerContext& context, const file::v1::Grant& grant,
                   GrantFn done);

  Coordinator& coordinator_;
  const FileKeys keys_;
  const Roots roots_;
  const absl::Duration header_patience_;
  FileCalls calls_;  // last: the calls use all of the above
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_FILE_SERVICE_H_
