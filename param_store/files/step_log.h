// metrics.jsonl of one job, written by its lead: one line per step. The file is the coordinator's.
// Lines are written into its folder if this process shares it, else sent over gRPC at most half a
// second late.
//
// Training never waits for it. A line that cannot be written is kept (services::LineFile). While a
// disk hangs, later lines wait in memory, up to as many bytes again; lines beyond that are dropped.
//
// Threads: Append on the job's strand. The file belongs to the strand `files`.
#ifndef CAPSTAN_PARAM_STORE_FILES_STEP_LOG_H_
#define CAPSTAN_PARAM_STORE_FILES_STEP_LOG_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "param_store/files/job_files.h"
#include "services/files/files.h"
#include "services/strand/strand.h"

namespace capstan::param_store {

class StepLog {
 public:
  // `folder`, an absolute path, is made with the first line. Borrows `files`, which must run
  // nothing of this object after its end, and `way`. `way` null: the folder is shared.
  StepLog(services::Strand& files, std::string job_id, std::string folder, JobFiles* way = nullptr);

  // Never waits. The line must end with its only '\n'.
  void Append(std::string line);
  // On `files`: sets the lineage of the lines that follow.
  void SetLineage(int64_t lineage) { lineage_ = lineage; }
  // On `files`: sends the waiting lines, if they go over gRPC.
  void Flush();
  // On `files`: writes what can be written and closes the file.
  void Close();

 private:
  bool Sends() const;
  absl::Status Write(const std::string& line);
  absl::Status Send();
  // Logs when writing begins to fail, and when it works again.
  void Say(const absl::Status& status);

  services::Strand& files_;
  const std::string job_id_;
  const std::string folder_;
  JobFiles* const way_;
  std::unique_ptr<services::LineFile> file_;
  int64_t lineage_ = 0;
  std::string unsent_;                    // whole lines
  bool send_is_due_ = false;              // a later try is posted
  std::atomic<size_t> waiting_bytes_{0};  // handed to `files`
  std::atomic<bool> failed_{false};       // logged, and not over yet
};

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_FILES_STEP_LOG_H_
