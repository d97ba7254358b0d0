// What the oldest step of a job waits for, and how long its lanes have been with their owners.
//
// A lane that is issued again waits twice as long before it is issued once more; when the step is
// over, each lane has the plain wait again.
#ifndef CAPSTAN_COORDINATOR_CORE_LATE_LANES_H_
#define CAPSTAN_COORDINATOR_CORE_LATE_LANES_H_

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/time/time.h"

namespace capstan::coordinator::core {

// Not thread-safe. `now` is the core's clock.
class LateLanes {
 public:
  // A step that was decided took so long.
  void NoteStep(double seconds);
  // The oldest step is `step` and waits for these lanes.
  void Await(int64_t step, const std::set<int32_t>& lanes, absl::Duration now);
  // A lane has another owner.
  void Issue(int32_t lane, absl::Duration now) { issued_at_[lane] = now; }
  // Because it was late.
  void CountReissue(int32_t lane) { ++reissues_[lane]; }
  void BeginLineage();
  // The last version is decided. For how long its last files have been waited for.
  absl::Duration EndAwaitedFor(absl::Duration now);

  // A step of the lineage was decided, and this coordinator knows how long it took.
  bool KnowsAStep() const { return knows_a_step_; }

  // An owner may need so long for its lanes after the others: `least`, or three median steps.
  absl::Duration Limit(absl::Duration least) const;
  // It has been with its owner for longer than `limit`, which doubles with each reissue.
  bool IsLate(int32_t lane, absl::Duration limit, absl::Duration now) const;

 private:
  std::vector<double> step_seconds_;  // of the last steps
  bool knows_a_step_ = false;         // of the lineage
  int64_t step_ = -1;
  std::set<int32_t> lanes_;                              // that it waits for
  absl::Duration since_;                                 // when this set changed last
  std::map<int32_t, absl::Duration> issued_at_;          // lanes that changed hands in this step
  std::map<int32_t, int> reissues_;                      // likewise: how often, for they were late
  absl::Duration end_since_ = absl::InfiniteDuration();  // the last version is decided
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_LATE_LANES_H_
