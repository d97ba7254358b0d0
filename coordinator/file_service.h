// FileService on gRPC's callback API: files of jobs come into the coordinator's storage and leave it.
//
// A call is let in by its key (file_keys.h), by the role of its certificate, and by the core, on the
// strand, which knows the view (core_files.cc). Paths are made here, of numbers and known names. All
// work on disks is done on threads of its own, one block at a time for each call; gRPC's flow control
// holds back who is faster than the disk.
//
// A disk that hangs keeps FileCalls::kThreads threads of each kind of call and folder, and kMaxCalls
// calls, which are over for their callers when these leave, or (but for uploads, where a large file is
// hashed) after FileCalls::kPatience; further ones are refused with UNAVAILABLE and the folder's name.
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
  // Calls of one kind that work on one job's folder at once, those among them whose caller has left
  // and whose disk has not answered. A job has fewer files that are sent at once; of more tasks that
  // look at once, which takes milliseconds, some try again.
  static constexpr size_t kMaxCalls = 512;
  // For the first message of an upload.
  static constexpr absl::Duration kHeaderPatience = absl::Seconds(10);

  struct Roots {
    // Absolute folders that initial weights may lie in, those of checkpoints too.
    std::vector<std::string> data;
    std::vector<std::string> checkpoints;  // those that storage_path may lie in
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

  // What FileCalls says.
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
  // Calls `done` on the strand. The status of what is known before is returned at once, and then
  // `done` is not called.
  absl::Status Ask(const grpc::CallbackServerContext& context, const file::v1::Grant& grant,
                   GrantFn done);

  Coordinator& coordinator_;
  const FileKeys keys_;
  const Roots roots_;
  const absl::Duration header_patience_;
  FileCalls calls_;  // they use all of the above: last
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_FILE_SERVICE_H_
