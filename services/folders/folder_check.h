// Whether folders can be used: there, writable where they are written to, with room. For `capstan
// doctor`.
#ifndef CAPSTAN_SERVICES_FOLDERS_FOLDER_CHECK_H_
#define CAPSTAN_SERVICES_FOLDERS_FOLDER_CHECK_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "capstan/job/v1/job_service.pb.h"

namespace capstan::services {

using FolderReports = std::vector<job::v1::FolderReport>;

// One look at some folders, each on a thread of its own: a network file system that hangs holds
// nobody else up. It keeps one thread of this process for each of its folders, however many look at
// them: whoever comes later waits for the look that is under way. Thread-safe.
class FolderCheck {
 public:
  using LookFn = std::function<void(job::v1::FolderReport&)>;
  // `folders`: path and use of each; a path that stands there twice for one use is looked at once.
  explicit FolderCheck(const FolderReports& folders);
  // For tests: `look` in place of ours.
  FolderCheck(const FolderReports& folders, const LookFn& look);

  bool done() const;
  // What is known within `patience`, in the order given. A folder that has not answered by then has
  // that as its error.
  FolderReports Wait(absl::Duration patience) const;

 private:
  struct Look;
  struct Looks;  // that are under way in this process

  std::vector<std::shared_ptr<Look>> looks_;  // a thread's too: whoever ends later frees it
};

// `path` as a report that says nothing but its use.
job::v1::FolderReport FolderFor(const std::string& path, job::v1::FolderUse use);
// The same of what --checkpoint-root and --data-root of a service name.
FolderReports RootFolders(const std::vector<std::string>& checkpoint_roots,
                          const std::vector<std::string>& data_roots);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_FOLDERS_FOLDER_CHECK_H_
