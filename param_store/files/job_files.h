// The files of one job for a shard or a task. They are in the coordinator's folder `storage_path`.
// This process either shares that folder or reaches the files over gRPC (capstan.file.v1).
//
// A look finds out which: the coordinator puts a file with a random name and random bytes into its
// folder. A process that reads the same bytes there, and may write there, shares the folder. A
// coordinator that gives no key has no FileService, and the folder is assumed to be shared.
//
// Over gRPC a file is sent straight from memory, at most 512 KiB at a time. After a cut, the
// transfer continues behind the bytes that arrived. Reads go from front to back, and nothing is
// stored here.
//
// Threads: any. Everything except Cancel and `way` blocks; use it on a job's thread for files.
#ifndef CAPSTAN_PARAM_STORE_FILES_JOB_FILES_H_
#define CAPSTAN_PARAM_STORE_FILES_JOB_FILES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "capstan/job/v1/job_service.pb.h"
#include "param_store/checkpoint/file_store.h"
#include "services/sync/mutex.h"

namespace grpc {
class Channel;
class ClientContext;
}  // namespace grpc

namespace capstan::param_store {

struct JobFilesOptions {
  std::string job_id;
  std::string storage_path;  // absolute
  std::string key;           // of StartTask or StartLineage; empty: the folder is shared
  std::shared_ptr<grpc::Channel> channel;  // to the coordinator; null: the folder is shared
  bool may_touch_folder = true;   // false: storage_path is under no --checkpoint-root of ours
  bool may_touch_weights = true;  // false: the initial weights are under no root of ours
  // A write is given up if no byte got through for this long. Reads wait until Cancel, because a
  // checkpoint is not missing just because the network is.
  absl::Duration patience = absl::Seconds(60);
};

class JobFiles final : public FileStore {
 public:
  explicit JobFiles(JobFilesOptions options);
  ~JobFiles() override;

  // Finds out, at each call anew, whether the folder is shared. Waits for the coordinator without a
  // limit. Cancelled: Cancel was called. Other errors are the coordinator's, for example of its
  // disk; the next call that needs the answer looks again.
  absl::Status Look();
  // Replaces the key with a newer one, also for calls that are retried. Does nothing if `key` is
  // empty or there was no key before.
  void SetKey(const std::string& key) ABSL_LOCKS_EXCLUDED(mu_);
  // The result of the last Look; UNSPECIFIED before the first. Never waits.
  job::v1::FilesWay way() const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether log lines go by AppendLog, which always works and is needed if the folder is not
  // shared.
  bool SendsLog() const { return MayAsk() && way() != job::v1::FILES_WAY_SHARED; }

  // FileStore. Calls Look first if it was not called.
  absl::StatusOr<std::unique_ptr<InputFile>> OpenCheckpointFile(const std::string& folder,
                                                                const std::string& name) override;
  // Opens the file at its path on this host, or the coordinator's if there is none.
  absl::StatusOr<std::unique_ptr<InputFile>> OpenInitialWeights(const std::string& path,
                                                                const std::string& name) override;
  absl::StatusOr<common::v1::FileInfo> Write(const std::string& folder, const std::string& name,
                                             absl::Span<const absl::string_view> parts) override;

  // Appends whole lines to the coordinator's metrics.jsonl, only over gRPC, and removes from
  // `lines` those that arrived. Tries once, with at most 5 s per call, even after Cancel. After an
  // error the caller tries again with the rest, perhaps with more lines; no line is written twice.
  absl::Status AppendLog(int64_t lineage, std::string& lines);

  // Every gRPC call, present or later, ends with CANCELLED (AppendLog excepted).
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Call;
  class RemoteFile;
  struct Rpc;

  bool MayAsk() const { return options_.channel != nullptr && !options_.key.empty(); }
  // Fills in the credentials of a call.
  template <typename Grant>
  void Show(Grant& grant) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<job::v1::FilesWay> Way();
  absl::Status LookOnce(job::v1::FilesWay* way);
  absl::Status UploadOnce(int64_t lineage, int64_t step, const common::v1::FileInfo& info,
                          absl::Span<const absl::string_view> parts, bool* progress);
  // Repeats `attempt` while its error may be temporary and it has set *progress within `patience`.
  absl::Status Retry(absl::Duration patience, const char* what,
                     const std::function<absl::Status(bool* progress)>& attempt)
      ABSL_LOCKS_EXCLUDED(mu_);
  bool cancelled() const ABSL_LOCKS_EXCLUDED(mu_);

  const JobFilesOptions options_;
  const std::unique_ptr<Rpc> rpc_;
  mutable Mutex mu_;
  CondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::string key_ ABSL_GUARDED_BY(mu_);
  job::v1::FilesWay way_ ABSL_GUARDED_BY(mu_) = job::v1::FILES_WAY_UNSPECIFIED;
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
  int64_t log_bytes_ = -1;  // of the coordinator's file; -1: not known. AppendLog's thread only
};

// `<lineage>-<step>`, the last component of a checkpoint's folder. InvalidArgument: it is not one.
struct CheckpointId {
  int64_t lineage = 0;
  int64_t step = 0;
};
absl::StatusOr<CheckpointId> ReadCheckpointFolder(absl::string_view folder);

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_FILES_JOB_FILES_H_
