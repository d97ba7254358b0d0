#include "coordinator/event_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/stored_file.h"
#include "services/files/files.h"
#include "training/history/job_history.h"

namespace capstan::coordinator {
namespace {

bool IsWanted(const core::Job& job) {
  return job.spec().outputs().metrics().tensorboard() && job.resolved().has_value();
}

// The history after what is written.
training::JobHistory NewHistory(const core::Job& job, const training::WrittenEvents& written) {
  training::JobHistory history;
  const std::vector<job::v1::MetricPoint>& points = job.history().metrics().points();
  const auto first = std::upper_bound(
      points.begin(), points.end(), written.step,
      [](int64_t step, const job::v1::MetricPoint& point) { return step < point.step(); });
  history.points.assign(first, points.end());
  for (const auto& [number, epoch] : job.history().epochs()) {
    auto evaluation = training::EvaluationOf(epoch, job.resolved()->steps_per_epoch(),
                                             job.history().progress().total_steps());
    if (!evaluation.has_value() || evaluation->step <= written.evaluation_step) continue;
    history.evaluations.push_back(*std::move(evaluation));
  }
  return history;
}

}  // namespace

void EventFiles::OnRestored(const core::Job& job) {
  if (!IsWanted(job)) return;
  Written& written = jobs_[job.id()];
  (void)training::EventsOf(NewHistory(job, {}), training::MetricNames(), written.events);
}

void EventFiles::OnJob(const core::Job& job, absl::Duration now, absl::Time wall) {
  if (!IsWanted(job)) return;
  Written& written = jobs_[job.id()];
  if (now < written.next && !job.standing().resting()) return;
  const training::JobHistory history = NewHistory(job, written.events);
  if (history.points.empty() && history.evaluations.empty()) return;
  written.next = now + kInterval;
  std::vector<training::ScalarEvent> events =
      training::EventsOf(history, training::MetricNames(), written.events);
  if (written.path.empty()) {
    written.path =
        absl::StrFormat("%s/events.out.tfevents.%010d.%s", job.resolved()->storage_path(),
                        absl::ToUnixSeconds(wall), job.id());
  }
  const double seconds = absl::ToDoubleSeconds(wall - absl::UnixEpoch());
  Bytes bytes{written.path, training::EventFileHead(seconds), ""};
  for (training::ScalarEvent& event : events) {
    // An evaluation that comes after the points of its step.
    if (event.unix_seconds == 0) event.unix_seconds = seconds;
    bytes.events += training::EventRecord(event);
  }
  append_(job.id(), std::move(bytes));
}

absl::Status EventFiles::Append(const Bytes& bytes) {
  const std::string& path = bytes.path;
  if (absl::Status status = services::EnsureDir(path.substr(0, path.rfind('/'))); !status.ok()) {
    return status;
  }
  const int fd =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
  if (fd < 0) return services::ErrnoStatus(errno, "open", path);
  const auto close_fd = absl::MakeCleanup([fd] { ::close(fd); });
  struct stat info;
  if (::fstat(fd, &info) != 0) return services::ErrnoStatus(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": not a regular file"));
  }
  const absl::Status status =
      WriteAt(fd, path, info.st_size == 0 ? bytes.head + bytes.events : bytes.events, info.st_size);
  if (!status.ok()) (void)::ftruncate(fd, info.st_size);  // leaves no half event
  return status;
}

}  // namespace capstan::coordinator
