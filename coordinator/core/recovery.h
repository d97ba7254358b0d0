// How a job goes on after a fault: when lanes get other owners, when a new lineage begins, and when a
// job that gave its gang back may have another one.
#ifndef CAPSTAN_COORDINATOR_CORE_RECOVERY_H_
#define CAPSTAN_COORDINATOR_CORE_RECOVERY_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace capstan::coordinator::core {

// Not thread-safe. Times are of the core's clock.
class Recovery {
 public:
  // Why a new lineage is wanted.
  enum class Cause {
    kNone,        // none is
    kShardsLost,  // leases of shards lapsed, or their processes died
    kOwnersLost,  // likewise of workers whose lanes nobody can take over
    kOther,       // a fault, or something that is no restart
  };

  // -- a new lineage
  bool wanted() const { return cause_ != Cause::kNone; }
  Cause cause() const { return cause_; }
  // Not before this time; of a job that wants one.
  absl::Duration at() const { return at_; }
  void Want(Cause cause, absl::Duration at) {
    cause_ = cause;
    at_ = at;
  }
  void PutOff(absl::Duration at) { at_ = at; }
  // The shards that were lost are back.
  void CallOff() { cause_ = Cause::kNone; }
  // It is being backed off.
  bool Waits(absl::Duration now) const { return wanted() && now < at_; }

  // -- lanes without an owner
  // When they get new ones. InfiniteDuration: no lane waits.
  absl::Duration takeover_at() const { return takeover_at_; }
  void TakeOverBy(absl::Duration at) { takeover_at_ = std::min(takeover_at_, at); }
  void TakeOverAt(absl::Duration at) { takeover_at_ = at; }
  void NoTakeover() { takeover_at_ = absl::InfiniteDuration(); }

  // A lineage has begun, or the job has given its gang back: none of the two is due.
  void Clear() {
    CallOff();
    NoTakeover();
  }

  // -- a job in the queue
  // It is not planned before this time.
  absl::Duration retry_at() const { return retry_at_; }
  absl::Time retry_wall() const { return retry_wall_; }  // the same for people
  void RetryAfter(absl::Duration backoff, absl::Duration now, absl::Time wall) {
    retry_at_ = now + backoff;
    retry_wall_ = wall + backoff;
  }
  void RetryAtOnce() { retry_at_ = -absl::InfiniteDuration(); }

  // -- steps that had been decided when the job became RECOVERING
  int64_t since_step() const { return since_step_; }
  void NoteStep(int64_t step) { since_step_ = step; }

  // When the job may go on, of the two that back off.
  absl::Duration BacksOffUntil() const { return wanted() ? at_ : retry_at_; }

 private:
  Cause cause_ = Cause::kNone;
  absl::Duration at_;
  absl::Duration takeover_at_ = absl::InfiniteDuration();
  absl::Duration retry_at_ = -absl::InfiniteDuration();
  absl::Time retry_wall_ = absl::InfinitePast();
  int64_t since_step_ = 0;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_RECOVERY_H_
