// What the kernel says about the paths of a job that is submitted, away from gRPC's threads.
//
// A disk that hangs (a hard NFS mount whose server is away) holds whoever opens a path on it, for ever.
// So each check runs on a thread of its root; a submit waits kPatience for it and is answered
// UNAVAILABLE then, with the name of the root. A root has kThreads: a folder inside it that hangs
// holds up as many checks, and only when all hang do further ones of this root wait in vain.
#ifndef CAPSTAN_COORDINATOR_PATH_CHECKS_H_
#define CAPSTAN_COORDINATOR_PATH_CHECKS_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/file_threads.h"
#include "coordinator/path_policy.h"
#include "coordinator/strand.h"

namespace capstan::coordinator {

class PathChecks {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(5);
  static constexpr int kThreads = 8;  // of one root

  using CheckFn = std::function<PathPolicy::Found(const PathPolicy::Claim&)>;
  // What was found of all claims together.
  using Done = std::function<void(const absl::Status&, const PathPolicy::Found&)>;

  // `strand` is borrowed, and outlives this object's work (Stop). `check` runs on many threads.
  explicit PathChecks(Strand& strand, CheckFn check = PathPolicy::CheckLinks,
                      absl::Duration patience = kPatience)
      : strand_(strand), check_(std::move(check)), patience_(patience) {}

  // Calls `done` once, on the strand, from which it is called: what was found, or Unavailable.
  void Check(std::vector<PathPolicy::Claim> claims, Done done);

  // Like FileThreads::Stop; what is not answered yet is not answered any more.
  bool Stop(absl::Duration patience = absl::InfiniteDuration()) { return files_.Stop(patience); }

 private:
  struct Round;  // one call of Check
  absl::Status Silent(const PathPolicy::Claim& claim) const;
  static void Finish(Round& round, const absl::Status& status);

  Strand& strand_;
  const CheckFn check_;
  const absl::Duration patience_;
  // By root; posts to the strand: goes first.
  FileThreads files_{{.threads = kThreads, .max_waiting = kThreads * FileThreads::kMaxWaiting}};
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_PATH_CHECKS_H_
