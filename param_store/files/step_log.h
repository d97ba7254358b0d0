// metrics.jsonl of one job, for its lead: one line per step. It lies with the coordinator: lines go
// into its folder where this process shares it, else over gRPC, at most half a second late.
//
// Training never waits for it. A line that cannot be written is kept (services::LineFile), and
// those behind a disk that hangs wait in memory, up to as many bytes again; what goes beyond is
// dropped.
//
// Threads: Append on the job's strand; the file belongs to the strand `files`.
#ifndef CAPSTAN_PARAM_STORE_FILES_STEP_LOG_H_
#define CAPSTAN_PARAM_STORE_FILES_STEP_LOG_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "param_store/client/strand.h"
#include "param_store/files/job_files.h"
#include "services/files/files.h"

namespace capstan::param_store {

class StepLog {
 public:
  // `folder`, absolute, is made with the first line. `files` is borrowed and runs nothing any more
  // once the object is gone; so is `way`, null: the folder is shared.
  StepLog(client::Strand& files, std::string job_id, std::string folder, JobFiles* way = nullptr);

  // Never waits. The line ends with the only '\n' in it.
  void Append(std::string line);
  // On `files`: the lineage whose lines follow.
  void SetLineage(int64_t lineage) { lineage_ = lineage; }
  // On `files`: over gRPC, what waits is sent.
  void Flush();
  // On `files`: what can be written is, and the file is let go.
  void Close();

 private:
  bool Sends() const;
  absl::Status Write(const std::string& line);
  absl::Status Send();
  // Logs where it begins to fail, and where it is over.
  void Say(const absl::Status& status);

  client::Strand& files_;
  const std::string job_id_;
  const std::string folder_;
  JobFiles* const way_;
  std::unique_ptr<services::LineFile> file_;
  int64_t lineage_ = 0;
  std::string unsent_;                    // whole lines
  bool send_is_due_ = false;              // posted
  std::atomic<size_t> waiting_bytes_{0};  // handed to `files`
  std::atomic<bool> failed_{false};       // said, and not over
};

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_FILES_STEP_LOG_H_
