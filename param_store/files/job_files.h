// The files of one job, as a shard or a task sees them. They lie with the coordinator: in its folder
// `storage_path`, which this process may share, or else reach over gRPC (capstan.file.v1).
//
// Which of the two is found out by a look: the coordinator puts a file with a random name and random
// bytes into its folder, and a process that reads the same bytes there, and may write, shares it. A
// coordinator that gives no key has no FileService, and the folder is taken to be shared.
//
// Over gRPC a file leaves from where it lies in memory, at most 512 KiB at a time, and goes on from
// the bytes that are there after a cut. What is read is taken from front to back and never stored
// here.
//
// Threads: any, all of it blocks but for Cancel and way. Meant for the thread for files of a job.
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
  bool may_touch_folder = true;   // false: storage_path lies under no --checkpoint-root of ours
  bool may_touch_weights = true;  // false: what the job begins from lies under no root of ours
  // Without a byte that got through; then a file that is written is given up. What is read is
  // waited for until Cancel: a checkpoint is not missing because the network is.
  absl::Duration patience = absl::Seconds(60);
};

class JobFiles final : public FileStore {
 public:
  explicit JobFiles(JobFilesOptions options);
  ~JobFiles() override;

  // Finds out the way, and again with each call; waits for the coordinator as long as it takes.
  // Cancelled: Cancel was called. Any other error is the coordinator's, of its disk say: then what
  // needs the way looks again.
  absl::Status Look();
  // Replaces the key with a newer one; also in calls that are tried again. Does nothing where `key` is
  // empty, or there was none before.
  void SetKey(const std::string& key) ABSL_LOCKS_EXCLUDED(mu_);
  // What the last Look found; UNSPECIFIED before that. Never waits.
  job::v1::FilesWay way() const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether lines go by AppendLog: always right, and needed where the folder is not shared.
  bool SendsLog() const { return MayAsk() && way() != job::v1::FILES_WAY_SHARED; }

  // FileStore. Before a Look: looks first.
  absl::StatusOr<std::unique_ptr<InputFile>> OpenCheckpointFile(const std::string& folder,
                                                                const std::string& name) override;
  // At its path on this host; where there is none, the coordinator's.
  absl::StatusOr<std::unique_ptr<InputFile>> OpenInitialWeights(const std::string& path,
                                                                const std::string& name) override;
  absl::StatusOr<common::v1::FileInfo> Write(const std::string& folder, const std::string& name,
                                             absl::Span<const absl::string_view> parts) override;

  // Appends whole lines to the coordinator's metrics.jsonl, over gRPC alone, and takes from `lines`
  // what is there. Tries once, for at most 5 s, also after Cancel. On an error the rest is the
  // caller's to try again, with more behind it; no line is there twice.
  absl::Status AppendLog(int64_t lineage, std::string& lines);

  // Everything over gRPC that is under way, or begins later, ends with CANCELLED.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Call;
  class RemoteFile;
  struct Rpc;

  bool MayAsk() const { return options_.channel != nullptr && !options_.key.empty(); }
  // Fills in what a call shows.
  template <typename Grant>
  void Show(Grant& grant) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<job::v1::FilesWay> Way();
  absl::Status LookOnce(job::v1::FilesWay* way);
  absl::Status UploadOnce(int64_t lineage, int64_t step, const common::v1::FileInfo& info,
                          absl::Span<const absl::string_view> parts, bool* progress);
  // Repeats `attempt` while its error may pass and `patience` has not gone by since it last set
  // *progress.
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
  int64_t log_bytes_ = -1;  // of the coordinator's file; -1: not known. Of AppendLog's thread
};

// `<lineage>-<step>`, the last component of a checkpoint's folder. InvalidArgument: it is another.
struct CheckpointId {
  int64_t lineage = 0;
  int64_t step = 0;
};
absl::StatusOr<CheckpointId> ReadCheckpointFolder(absl::string_view folder);

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_FILES_JOB_FILES_H_
