// metrics.jsonl of one job, for a shard: one line per step.
//
// Training never waits for it. A line that cannot be written is kept (services::LineFile), and
// those behind a disk that hangs wait in memory, up to as many bytes again; what goes beyond is
// dropped.
//
// Threads: Append on the job's strand; the file belongs to the strand `files`.
#ifndef CAPSTAN_PARAM_STORE_STEP_LOG_H_
#define CAPSTAN_PARAM_STORE_STEP_LOG_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "param_store/client/strand.h"
#include "services/files/files.h"

namespace capstan::param_store {

class StepLog {
 public:
  // `folder`, absolute, is made with the first line. `files` is borrowed and runs nothing any more
  // once the object is gone.
  StepLog(client::Strand& files, std::string job_id, std::string folder);

  // Never waits. The line ends with the only '\n' in it.
  void Append(std::string line);
  // On `files`: what can be written is, and the file is let go.
  void Close() { file_.reset(); }

 private:
  absl::Status Write(const std::string& line);
  // Logs where it begins to fail, and where it is over.
  void Say(const absl::Status& status);

  client::Strand& files_;
  const std::string job_id_;
  const std::string folder_;
  std::unique_ptr<services::LineFile> file_;
  std::atomic<size_t> waiting_bytes_{0};  // handed to `files`
  std::atomic<bool> failed_{false};       // said, and not over
};

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_STEP_LOG_H_
