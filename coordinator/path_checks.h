// Checks the paths of a submitted job on the file system, away from gRPC's threads.
//
// A hung disk (a hard NFS mount without its server) blocks everybody who opens a path on it, for
// ever. So each check runs on a thread of its root. A submit waits for it at most kPatience and is
// then answered UNAVAILABLE, with the name of the root. Each root has kThreads threads. A hung
// folder inside a root blocks as many threads as there are checks on it. Other checks of that root
// wait in vain only if all its threads hang.
#ifndef CAPSTAN_COORDINATOR_PATH_CHECKS_H_
#define CAPSTAN_COORDINATOR_PATH_CHECKS_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/file_threads.h"
#include "coordinator/path_policy.h"
#include "coordinator/work_thread.h"

namespace capstan::coordinator {

class PathChecks {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(5);
  static constexpr int kThreads = 8;  // of one root

  using CheckFn = std::function<PathPolicy::Found(const PathPolicy::Claim&)>;
  // Gets what was found for all claims together.
  using Done = std::function<void(const absl::Status&, const PathPolicy::Found&)>;

  // Borrows `strand`, which must outlive this object's work (Stop). `check` runs on many threads.
  explicit PathChecks(WorkThread& strand, CheckFn check = PathPolicy::CheckLinks,
                      absl::Duration patience = kPatience)
      : strand_(strand), check_(std::move(check)), patience_(patience) {}

  // Calls `done` once, on the strand, with the findings or Unavailable. Call it on the strand.
  void Check(std::vector<PathPolicy::Claim> claims, Done done);

  // See FileThreads::Stop. Checks that are not answered yet are never answered.
  bool Stop(absl::Duration patience = absl::InfiniteDuration()) { return files_.Stop(patience); }

 private:
  struct Round;  // one call of Check
  absl::Status Silent(const PathPolicy::Claim& claim) const;
  static void Finish(Round& round, const absl::Status& status);

  WorkThread& strand_;
  const CheckFn check_;
  const absl::Duration patience_;
  // By root. It posts to the strand and so is destroyed first.
  FileThreads files_{{.threads = kThreads, .max_waiting = kThreads * FileThreads::kMaxWaiting}};
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_PATH_CHECKS_H_
