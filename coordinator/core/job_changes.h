// What people, or the coordinator itself, change in a running job.
#ifndef CAPSTAN_COORDINATOR_CORE_JOB_CHANGES_H_
#define CAPSTAN_COORDINATOR_CORE_JOB_CHANGES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "capstan/job/v1/job_service.pb.h"
#include "capstan/node/v1/node.pb.h"

namespace capstan::coordinator::core {

// One change. Its message to the lead is an Order.
struct JobChange {
  node::v1::Order order;  // with its step once the lead has told it
  int64_t lineage = 0;    // in which it took effect; 0: not yet
  // Of a suspend: the coordinator's, for a shard that leaves. The job goes on in the next lineage.
  bool hand_over = false;
  // Of a hand-over: how the shards change with the next lineage (shard_mover.h). nullopt: some leave.
  std::optional<job::v1::ShardMove> move = std::nullopt;
};

// "learning rate 0.1", "checkpoint", "suspend", "hand-over" or "drain shard 1".
std::string ChangeText(const JobChange& change);

// Not thread-safe. `now` is the core's clock.
class JobChanges {
 public:
  // By id, from 1.
  std::vector<JobChange>::const_iterator begin() const { return changes_.begin(); }
  std::vector<JobChange>::const_iterator end() const { return changes_.end(); }
  size_t size() const { return changes_.size(); }
  bool empty() const { return changes_.empty(); }
  const JobChange& operator[](size_t i) const { return changes_[i]; }
  // Null: there is none with this id.
  JobChange* Find(int64_t id);

  // Gives it the next id, which is the answer, and makes it due at once.
  int64_t Add(node::v1::Order order, bool hand_over = false,
              std::optional<job::v1::ShardMove> move = std::nullopt);
  // As it was saved, after those with lower ids.
  void Load(const JobChange& change) { changes_.push_back(change); }

  // A suspend for a hand-over is under way. The time that a shard has for it counts from `now` where it
  // was not begun before.
  bool HandOverOrdered() const;
  void BeginHandOver(absl::Duration now) { hand_over_since_ = now; }
  absl::Duration HandOverFor(absl::Duration now);
  // The move of shards that is under way, or null.
  const JobChange* Move() const;
  // A suspend by a person that is not among `applied`.
  bool SuspendOrdered(const std::vector<int64_t>& applied) const;
  // What they were for is over: whatever history repeats them, they are checkpoints. Each keeps its
  // id and its step.
  void AnswerSuspends();
  void AnswerHandOvers();

  // The lead is given them again every `every`, until it shows them.
  bool Due(absl::Duration now, absl::Duration every) const { return now - given_at_ >= every; }
  void NoteGiven(absl::Duration now) { given_at_ = now; }
  void GiveAtOnce() { given_at_ = -absl::InfiniteDuration(); }

 private:
  std::vector<JobChange> changes_;
  absl::Duration given_at_ = -absl::InfiniteDuration();
  absl::Duration hand_over_since_ = absl::InfiniteDuration();  // ordered; Infinite: none is
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_JOB_CHANGES_H_
