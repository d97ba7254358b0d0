// Whether folders can be used: there, writable where they are written to, with room. For `capstan
// doctor`.
#ifndef CAPSTAN_SERVICES_FOLDERS_FOLDER_CHECK_H_
#define CAPSTAN_SERVICES_FOLDERS_FOLDER_CHECK_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "capstan/job/v1/job_service.pb.h"

namespace capstan::services {

using FolderReports = std::vector<job::v1::FolderReport>;

// One look at some folders, on a thread of its own: a network file system that hangs keeps that
// thread and holds nobody else up. Thread-safe.
class FolderCheck {
 public:
  // `folders`: path and use of each; a path that stands there twice for one use is looked at once.
  explicit FolderCheck(FolderReports folders);

  bool done() const;
  // What is known within `patience`, in the order given. A folder that has not answered by then has
  // that as its error.
  FolderReports Wait(absl::Duration patience) const;

 private:
  struct State;
  const std::shared_ptr<State> state_;  // the thread's too: whoever ends later frees it
};

// `path` as a report that says nothing but its use.
job::v1::FolderReport FolderFor(const std::string& path, job::v1::FolderUse use);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_FOLDERS_FOLDER_CHECK_H_
