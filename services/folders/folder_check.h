// Checks whether folders are usable: they exist, are writable if written to, and have room. For
// `capstan doctor`.
#ifndef CAPSTAN_SERVICES_FOLDERS_FOLDER_CHECK_H_
#define CAPSTAN_SERVICES_FOLDERS_FOLDER_CHECK_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "capstan/job/v1/admin_service.pb.h"

namespace capstan::services {

using FolderReports = std::vector<job::v1::FolderReport>;

// Looks once at some folders, each on its own thread, so that a hung network file system blocks no
// other folder. The process has at most one thread per folder, however many callers look at it: a
// later caller waits for the look in flight. Thread-safe.
class FolderCheck {
 public:
  using LookFn = std::function<void(job::v1::FolderReport&)>;
  // `folders`: path and use of each. A path that is listed twice for one use is looked at once.
  explicit FolderCheck(const FolderReports& folders);
  // For tests: uses `look` instead of the real one.
  FolderCheck(const FolderReports& folders, const LookFn& look);

  bool done() const;
  // The results that arrive within `patience`, in the given order. A folder without an answer by
  // then has that as its error.
  FolderReports Wait(absl::Duration patience) const;

 private:
  struct Look;
  struct Looks;  // those in flight in this process

  std::vector<std::shared_ptr<Look>> looks_;  // shared with a thread; the last owner frees it
};

// A report for `path` that contains only its path and use.
job::v1::FolderReport FolderFor(const std::string& path, job::v1::FolderUse use);
// Reports for the folders of a service's --checkpoint-root and --data-root.
FolderReports RootFolders(const std::vector<std::string>& checkpoint_roots,
                          const std::vector<std::string>& data_roots);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_FOLDERS_FOLDER_CHECK_H_
