// The state of a job, as people see it, and how it came to its end.
#ifndef CAPSTAN_COORDINATOR_CORE_STANDING_H_
#define CAPSTAN_COORDINATOR_CORE_STANDING_H_

#include <cstdint>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "capstan/common/v1/common.pb.h"

namespace capstan::coordinator::core {

// Not thread-safe. `now` is the core's clock, `wall` is for people.
class Standing {
 public:
  common::v1::JobState state() const { return state_; }
  const std::string& reason() const { return reason_; }
  const std::string& message() const { return message_; }
  bool ended() const;
  // Has no right to a gang: whatever of it still runs is stopped.
  bool resting() const;

  void Set(common::v1::JobState state, const std::string& reason, const std::string& message);
  // In the same state. False: it was said already.
  bool Say(const std::string& reason, const std::string& message);

  bool cancel_asked() const { return cancel_asked_; }
  absl::Duration CancelledFor(absl::Duration now) const { return now - cancel_since_; }
  void AskCancel(absl::Duration now);

  absl::Time submitted_at() const { return submitted_at_; }
  absl::Time started_at() const { return started_at_; }    // InfinitePast: not yet
  absl::Time finished_at() const { return finished_at_; }  // InfinitePast: not yet
  bool started() const { return started_at_ != absl::InfinitePast(); }
  // Its end, or the start of the coordinator after that.
  absl::Duration ended_at() const { return ended_at_; }
  void NoteSubmitted(absl::Time wall) { submitted_at_ = wall; }
  // Counts the first time alone.
  void NoteStarted(absl::Time wall);
  void NoteEnded(absl::Time wall, absl::Duration now);
  // Another try after the end: nobody has cancelled it.
  void Reopen();

  // Names of what is not as it should be.
  const std::set<std::string>& conditions() const { return conditions_; }
  bool Has(const std::string& condition) const { return conditions_.count(condition) > 0; }
  // True: it is new.
  bool AddCondition(const std::string& condition) { return conditions_.insert(condition).second; }
  void EraseCondition(const std::string& condition) { conditions_.erase(condition); }

  struct Times {
    absl::Time submitted_at;
    absl::Time started_at = absl::InfinitePast();
    absl::Time finished_at = absl::InfinitePast();
  };
  // As it was saved; its message is set apart.
  void Load(common::v1::JobState state, const std::string& reason, bool cancel_asked,
            const Times& times, absl::Duration now);

 private:
  common::v1::JobState state_ = common::v1::JOB_STATE_PENDING;
  std::string reason_;
  std::string message_;
  bool cancel_asked_ = false;
  absl::Duration cancel_since_;
  absl::Time submitted_at_;
  absl::Time started_at_ = absl::InfinitePast();
  absl::Time finished_at_ = absl::InfinitePast();
  absl::Duration ended_at_;
  std::set<std::string> conditions_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_STANDING_H_
