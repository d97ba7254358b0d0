// The files that a task has written, by version, for TaskState.files. It reports the oldest version
// whose files are complete, or that was abandoned, until the coordinator has taken it.
//
// Threads: none of its own; the task's strand.
#ifndef CAPSTAN_GPU_WORKER_TASK_FILE_REPORTS_H_
#define CAPSTAN_GPU_WORKER_TASK_FILE_REPORTS_H_

#include <cstdint>
#include <deque>
#include <string>

#include "capstan/common/v1/common.pb.h"
#include "capstan/node/v1/node.pb.h"

namespace capstan::gpu_worker {

class FileReports {
 public:
  // A new lineage. Files of the one before are not reported any more.
  void Reset(int64_t lineage);

  // One more file of the version is being written. `last`: the version is the last of its lineage
  // and must be written.
  void Expect(int64_t step, bool last);
  void Written(int64_t step, const common::v1::FileInfo& file);
  void SetLead(int64_t step, std::string snapshot);
  void SetWeights(int64_t step, std::string weights_sha256);
  // The file could not be written. True: it must be written, so try again; meanwhile the error is
  // reported. False: the version is abandoned.
  bool Failed(int64_t step, const std::string& error);
  void Taken(int64_t lineage, int64_t step);

  void Fill(node::v1::TaskState& state) const;

 private:
  struct Version {
    bool last = false;
    int missing = 0;
    node::v1::WrittenFiles files;
    std::string weights_sha256;
  };
  Version* Find(int64_t step);

  int64_t lineage_ = 0;
  std::deque<Version> versions_;  // oldest first
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_FILE_REPORTS_H_
