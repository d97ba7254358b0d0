#include "services/folders/folder_check.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "services/clock/clock.h"
#include "services/sync/mutex.h"

namespace capstan::services {
namespace {

void LookAt(job::v1::FolderReport& report) {
  const char* const path = report.path().c_str();
  struct stat entry = {};
  struct statvfs system = {};
  if (stat(path, &entry) != 0 || statvfs(path, &system) != 0) {
    report.set_error(std::strerror(errno));
    return;
  }
  if (!S_ISDIR(entry.st_mode)) {
    report.set_error("it is no folder");
    return;
  }
  // The root of everything stands for "anywhere": what a job writes to lies deeper.
  if (report.use() != job::v1::FOLDER_USE_DATA && report.path() != "/" && access(path, W_OK) != 0) {
    report.set_error(std::strerror(errno));
    return;
  }
  const auto block = static_cast<int64_t>(system.f_frsize);
  report.set_free_bytes(static_cast<int64_t>(system.f_bavail) * block);
  report.set_total_bytes(static_cast<int64_t>(system.f_blocks) * block);
}

}  // namespace

struct FolderCheck::State {
  Mutex mu;
  CondVar changed;
  FolderReports reports ABSL_GUARDED_BY(mu);
  size_t seen ABSL_GUARDED_BY(mu) = 0;  // reports in front that are complete
};

FolderCheck::FolderCheck(FolderReports folders) : state_(std::make_shared<State>()) {
  FolderReports once;
  for (job::v1::FolderReport& folder : folders) {
    const bool there = std::any_of(once.begin(), once.end(), [&](const auto& other) {
      return other.path() == folder.path() && other.use() == folder.use();
    });
    if (!there) once.push_back(std::move(folder));
  }
  {
    MutexLock lock(state_->mu);
    state_->reports = once;
  }
  std::thread([state = state_, once = std::move(once)]() mutable {
    for (size_t i = 0; i < once.size(); ++i) {
      LookAt(once[i]);
      MutexLock lock(state->mu);
      state->reports[i] = once[i];
      state->seen = i + 1;
      state->changed.NotifyAll();
    }
  }).detach();
}

bool FolderCheck::done() const {
  MutexLock lock(state_->mu);
  return state_->seen == state_->reports.size();
}

FolderReports FolderCheck::Wait(absl::Duration patience) const {
  const absl::Duration until = MonotonicNow() + patience;
  MutexLock lock(state_->mu);
  while (state_->seen < state_->reports.size() && MonotonicNow() < until) {
    state_->changed.WaitWithTimeout(state_->mu, until - MonotonicNow());
  }
  FolderReports reports = state_->reports;
  for (size_t i = state_->seen; i < reports.size(); ++i) {
    reports[i].set_error("its file system does not answer");
  }
  return reports;
}

job::v1::FolderReport FolderFor(const std::string& path, job::v1::FolderUse use) {
  job::v1::FolderReport report;
  report.set_path(path);
  report.set_use(use);
  return report;
}

}  // namespace capstan::services
