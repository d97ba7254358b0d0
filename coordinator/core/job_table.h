// All jobs, by what is asked of them: by id, in the queue, with a gang, ended.
#ifndef CAPSTAN_COORDINATOR_CORE_JOB_TABLE_H_
#define CAPSTAN_COORDINATOR_CORE_JOB_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/deadlines.h"
#include "coordinator/core/job.h"

namespace capstan::coordinator::core {

// Owns the jobs. Not thread-safe.
class JobTable {
 public:
  using BySequence = std::map<int64_t, Job*>;  // oldest first

  // Null: there is none.
  Job* Find(absl::string_view id);
  const Job* Find(absl::string_view id) const;
  const Job* OfRequest(const std::string& request_id) const;
  bool HasSequence(int64_t sequence) const { return all_.count(sequence) > 0; }
  size_t size() const { return jobs_.size(); }
  bool empty() const { return jobs_.empty(); }

  // Its id, sequence and request id are new. It is in no queue yet.
  Job& Add(std::unique_ptr<Job> job);

  const BySequence& all() const { return all_; }
  const BySequence& pending() const { return pending_; }
  // Has a gang, or something of it may still run.
  const BySequence& active() const { return active_; }
  bool IsActive(const Job& job) const { return active_.count(job.sequence()) > 0; }
  // Begins from initial weights of a file.
  const BySequence& with_weights() const { return with_weights_; }
  void Queue(Job& job) { pending_[job.sequence()] = &job; }
  void Unqueue(const Job& job) { pending_.erase(job.sequence()); }
  void Activate(Job& job) { active_[job.sequence()] = &job; }
  // False: it was not active.
  bool Deactivate(const Job& job) { return active_.erase(job.sequence()) > 0; }

  // Ids of jobs that have ended, the oldest end first.
  const std::deque<std::string>& ended() const { return ended_; }
  void NoteEnd(const Job& job) { ended_.push_back(job.id()); }
  // A person retries it.
  void Reopen(const Job& job);
  // Of the ended jobs that have some share: the oldest one of the owner who has most of all, as a place in
  // ended(). One owner's thousands must not cost the others theirs. ended().size(): none has any.
  size_t OldestOfTheGreatest(const std::function<int64_t(const Job&)>& share) const;
  // Erases the job at this place of ended().
  void Forget(size_t index);

  // -- what is asked of all active jobs at once
  // The job was advanced or has changed: UpdateIndexes looks at it again.
  void Touch(const Job& job) { touched_[job.sequence()] = &job; }
  // Looks at the touched jobs alone: an event costs the same however many others run.
  void UpdateIndexes();
  // When a job's takeover is due, or the recovery of one that waits for its back-off after `now`.
  absl::Duration NextDue(absl::Duration now) const;
  // Sequences of the jobs that lack workers.
  const std::set<int64_t>& lacking() const { return lacking_; }

  void NoteNewPoint(const Job& job) { unsaved_histories_.insert(job.sequence()); }
  // Active jobs with new points of metrics since the last call.
  std::vector<Job*> TakeUnsavedHistories();

 private:
  std::map<std::string, std::unique_ptr<Job>, std::less<>> jobs_;
  BySequence all_;
  BySequence pending_;
  BySequence active_;
  BySequence with_weights_;
  std::deque<std::string> ended_;
  std::map<std::string, std::string> requests_;  // request id -> job id

  Deadlines takeovers_;                    // Recovery::takeover_at
  Deadlines recoveries_;                   // Recovery::at of those that want a lineage
  std::set<int64_t> lacking_;              // those with Job::LackingWorkers
  std::set<int64_t> unsaved_histories_;    // with new points
  std::map<int64_t, const Job*> touched_;  // and not in the indexes yet
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_JOB_TABLE_H_
