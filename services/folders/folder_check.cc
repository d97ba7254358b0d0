#include "services/folders/folder_check.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <system_error>
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
    report.set_error("it is not a folder");
    return;
  }
  // The root folder stands for "anywhere"; jobs write deeper.
  if (report.use() != job::v1::FOLDER_USE_DATA && report.path() != "/" && access(path, W_OK) != 0) {
    report.set_error(std::strerror(errno));
    return;
  }
  const auto block = static_cast<int64_t>(system.f_frsize);
  report.set_free_bytes(static_cast<int64_t>(system.f_bavail) * block);
  report.set_total_bytes(static_cast<int64_t>(system.f_blocks) * block);
}

}  // namespace

struct FolderCheck::Look {
  explicit Look(const job::v1::FolderReport& asked) : report(asked) {}

  Mutex mu;
  CondVar changed;
  job::v1::FolderReport report ABSL_GUARDED_BY(mu);
  bool done ABSL_GUARDED_BY(mu) = false;
};

struct FolderCheck::Looks {
  // Never destroyed, because a hung thread may return at the very end.
  static Looks& OfThisProcess() {
    static Looks* const looks = new Looks;
    return *looks;
  }
  std::shared_ptr<Look> Join(const job::v1::FolderReport& folder, const LookFn& look) {
    const Key key(folder.path(), folder.use());
    MutexLock lock(mu);
    std::shared_ptr<Look>& there = under_way[key];
    if (there != nullptr) return there;
    there = std::make_shared<Look>(folder);
    const std::shared_ptr<Look> begun = there;
    try {
      std::thread([this, begun, key, look, report = folder]() mutable {
        look(report);
        End(*begun, key, report);
      }).detach();
    } catch (const std::system_error& error) {
      under_way.erase(key);
      MutexLock done(begun->mu);
      begun->report.set_error(std::string("no thread to look at it: ") + error.what());
      begun->done = true;
    }
    return begun;
  }

 private:
  using Key = std::pair<std::string, int>;  // path and use

  void End(Look& look, const Key& key, const job::v1::FolderReport& report) {
    {
      MutexLock lock(mu);
      under_way.erase(key);
    }
    MutexLock lock(look.mu);
    look.report = report;
    look.done = true;
    look.changed.NotifyAll();
  }

  Mutex mu;
  std::map<Key, std::shared_ptr<Look>> under_way ABSL_GUARDED_BY(mu);
};

FolderCheck::FolderCheck(const FolderReports& folders) : FolderCheck(folders, LookAt) {}

FolderCheck::FolderCheck(const FolderReports& folders, const LookFn& look) {
  std::set<std::pair<std::string, int>> seen;
  for (const job::v1::FolderReport& folder : folders) {
    if (!seen.emplace(folder.path(), folder.use()).second) continue;
    looks_.push_back(Looks::OfThisProcess().Join(folder, look));
  }
}

bool FolderCheck::done() const {
  return std::all_of(looks_.begin(), looks_.end(), [](const std::shared_ptr<Look>& look) {
    MutexLock lock(look->mu);
    return look->done;
  });
}

FolderReports FolderCheck::Wait(absl::Duration patience) const {
  const absl::Duration until = MonotonicNow() + patience;
  FolderReports reports;
  for (const std::shared_ptr<Look>& look : looks_) {
    MutexLock lock(look->mu);
    while (!look->done && MonotonicNow() < until) {
      look->changed.WaitWithTimeout(look->mu, until - MonotonicNow());
    }
    reports.push_back(look->report);
    if (!look->done) reports.back().set_error("its file system does not answer");
  }
  return reports;
}

job::v1::FolderReport FolderFor(const std::string& path, job::v1::FolderUse use) {
  job::v1::FolderReport report;
  report.set_path(path);
  report.set_use(use);
  return report;
}

FolderReports RootFolders(const std::vector<std::string>& checkpoint_roots,
                          const std::vector<std::string>& data_roots) {
  FolderReports folders;
  for (const std::string& root : checkpoint_roots) {
    folders.push_back(FolderFor(root, job::v1::FOLDER_USE_CHECKPOINTS));
  }
  for (const std::string& root : data_roots) {
    folders.push_back(FolderFor(root, job::v1::FOLDER_USE_DATA));
  }
  return folders;
}

}  // namespace capstan::services
