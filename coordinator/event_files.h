// Event files for TensorBoard, of jobs with `outputs.metrics.tensorboard: true`:
// `<storage_path>/events.out.tfevents.<unix seconds>.<job id>`.
//
// They have the points of the job's history as they come, and its evaluations. Each coordinator
// begins a file of its own; TensorBoard reads all files of a folder. Steps that are taken back and
// trained again are not written twice by one coordinator. What cannot be written is lost and
// logged: nothing waits for these files. A coordinator that dies loses up to kInterval of points.
//
// Use from the strand; only Append may be called elsewhere.
#ifndef CAPSTAN_COORDINATOR_EVENT_FILES_H_
#define CAPSTAN_COORDINATOR_EVENT_FILES_H_

#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/job.h"
#include "training/history/event_file.h"

namespace capstan::coordinator {

class EventFiles {
 public:
  // Events of one job are collected for so long before they are written.
  static constexpr absl::Duration kInterval = absl::Seconds(2);
  // `events` belong at the end of the file; `head` comes before them if the file has nothing yet.
  struct Bytes {
    std::string path, head, events;
  };
  using AppendFn = std::function<void(const std::string& job_id, Bytes bytes)>;
  explicit EventFiles(AppendFn append) : append_(std::move(append)) {}

  // A job that an earlier coordinator has written up to its present point.
  void OnRestored(const core::Job& job);
  // The job has changed. `now` is monotonic, `wall` the time of day.
  void OnJob(const core::Job& job, absl::Duration now, absl::Time wall);
  void OnForgotten(const std::string& job_id) { jobs_.erase(job_id); }

  // Appends to the file, which is made if it is missing. On an error the file has what it had
  // before. Blocks.
  static absl::Status Append(const Bytes& bytes);

 private:
  struct Written {
    training::WrittenEvents events;
    std::string path;  // empty: nothing was written yet
    absl::Duration next = -absl::InfiniteDuration();
  };

  const AppendFn append_;
  std::map<std::string, Written> jobs_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_EVENT_FILES_H_
