// How long each worker needs for its lanes of a step, and whose lanes are late. Measured at the
// lead, where seals arrive.
//
// A lane is late when its owner has had it for `factor` times as long as the others needed for
// theirs in the same step, and for `factor` times the median of the last steps; never before
// `floor`. Each lane has a time of its own: one that gets another owner inside the step begins
// anew, with twice the patience at each repetition. The next step begins with none of that.
// Before kFirstSteps steps are measured no lane is late, for the first ones set things up.
//
// Pure. `now` is a monotonic time from any origin.
#ifndef CAPSTAN_EXCHANGE_SHARD_LANE_TIMES_H_
#define CAPSTAN_EXCHANGE_SHARD_LANE_TIMES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "training/lanes/lane_tree.h"

namespace capstan::exchange::shard {

struct LatePolicy {
  absl::Duration floor = absl::Milliseconds(500);
  double factor = 4;
};

// Of one worker, over all measured steps: those in which no lane changed hands.
struct WorkerTimes {
  int64_t steps = 0;
  int64_t lanes = 0;
  double seconds = 0;  // from a version until its last seal
};

class LaneTimes {
 public:
  static constexpr size_t kFirstSteps = 3;

  explicit LaneTimes(LatePolicy policy = {}) : policy_(policy) {}

  // Another history: nothing is known.
  void Clear();
  // A version is published; step `tree` begins, which also ends the one before. Lanes that the tree
  // has not are waited for by nobody.
  void BeginStep(const training::LaneTree& tree, const std::vector<int32_t>& owners,
                 absl::Duration now);
  // A newer view.
  void SetOwners(const std::vector<int32_t>& owners, absl::Duration now);
  // The block's seal is here for the first time, or one that covers more than was here.
  void Sealed(const training::LaneBlock& block, absl::Duration now);

  // When the next lane becomes late; InfiniteDuration: not before something else happens.
  absl::Duration NextLate(absl::Duration now) const;
  // Lanes that are late now, ascending.
  std::vector<int32_t> Late(absl::Duration now) const;
  // By rank.
  const std::map<int32_t, WorkerTimes>& workers() const { return workers_; }

 private:
  struct Lane {
    bool sealed = false;
    absl::Duration since;  // when its owner got it
    int reissues = 0;      // in this step
  };

  absl::Duration Limit() const;
  absl::Duration LateAt(const Lane& lane, absl::Duration limit) const;

  const LatePolicy policy_;
  bool running_ = false;
  absl::Duration began_;
  std::vector<int32_t> owners_;
  std::vector<Lane> lanes_;
  std::map<int32_t, int32_t> missing_;   // lanes without a seal, by owner
  std::map<int32_t, int32_t> computes_;  // lanes of the step, by owner
  bool unmoved_ = true;                  // no lane changed hands in this step
  std::vector<double> done_;             // seconds of those who are done with this step
  std::deque<double> steps_;             // of the last steps
  std::map<int32_t, WorkerTimes> workers_;
};

}  // namespace capstan::exchange::shard

#endif  // CAPSTAN_EXCHANGE_SHARD_LANE_TIMES_H_
