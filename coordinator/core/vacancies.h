// Where a running job looks for the workers that it lacks.
#ifndef CAPSTAN_COORDINATOR_CORE_VACANCIES_H_
#define CAPSTAN_COORDINATOR_CORE_VACANCIES_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "coordinator/scheduler/snapshot.h"

namespace capstan::coordinator::core {

// Not thread-safe. `now` is the core's clock.
class Vacancies {
 public:
  // A task on this node has failed after it had worked for `worked`. The node gets no other task of the
  // job for `delay`, which doubles with each failure and is short again after a failure that came later
  // than `forgiven`.
  void NoteFailure(const std::string& node, absl::Duration worked, absl::Duration delay,
                   absl::Duration forgiven, absl::Duration now);
  // The data of this node are not those of the job.
  void NoteRefusal(const std::string& node, absl::Duration delay, absl::Duration now);
  std::set<std::string> Excluded(absl::Duration now) const;
  void ForgetFailures() { rejoins_.clear(); }

  // This request found no node when the number of `freed` things was this.
  bool WasInVain(const scheduler::GangRequest& request, int64_t freed) const {
    return freed_ == freed && unfilled_ == request;
  }
  void NoteTried(const scheduler::GangRequest& request, int64_t freed) {
    freed_ = freed;
    unfilled_ = request;
  }
  void NoteFound() { unfilled_.reset(); }

 private:
  struct Rejoin {
    int failures = 0;
    absl::Duration not_before;
  };
  std::map<std::string, Rejoin> rejoins_;  // by node
  std::optional<scheduler::GangRequest> unfilled_;
  int64_t freed_ = -1;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_VACANCIES_H_
