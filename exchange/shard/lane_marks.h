// What an asynchronous job has applied (rule A1): each chunk keeps a mark per lane, the lane's next
// step. All earlier steps of the lane are in the chunk's weights, once each.
//
// A lane may have no samples in a step. A mark is never such a step: it is the next one in which the
// lane has samples, or total_steps.
//
// Threads: none of its own; calls on one object must not overlap.
#ifndef CAPSTAN_EXCHANGE_SHARD_LANE_MARKS_H_
#define CAPSTAN_EXCHANGE_SHARD_LANE_MARKS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "training/lanes/sample_plan.h"

namespace capstan::exchange::shard {

// The first step from `step` on in which the lane has samples; total_steps if there is none.
int64_t NextStepOf(const training::SamplePlan& samples, int64_t total_steps, int32_t lane,
                   int64_t step);

class LaneMarks {
 public:
  // Borrows the plan.
  LaneMarks(const training::SamplePlan& samples, int64_t total_steps)
      : samples_(samples), total_steps_(total_steps) {}

  // The marks of `chunks` chunks, nothing of which is applied.
  void Begin(int32_t chunks);
  // Those of a checkpoint of `version`, as Saved() gave them. DataLoss: not marks of this job, or
  // a lane is behind the version. Then nothing is changed.
  absl::Status Restore(int32_t chunks, int64_t version, const std::vector<int64_t>& saved);
  // For each chunk: its marks by lane, and then updates(chunk).
  std::vector<int64_t> Saved() const;
  static int64_t SavedPerChunk(const training::SamplePlan& samples) { return samples.lanes() + 1; }

  int64_t mark(int32_t chunk, int32_t lane) const {
    return marks_[chunk * samples_.lanes() + lane];
  }
  // The lane's step at mark() is over in this chunk. `applied`: it has changed the weights.
  void Raise(int32_t chunk, int32_t lane, bool applied);
  // Contributions that the chunk's weights have. The bias correction of Adam counts them.
  int64_t updates(int32_t chunk) const { return updates_[chunk]; }

  // The lowest mark of the lane over all chunks.
  int64_t Lowest(int32_t lane) const { return lowest_[lane]; }
  // The lowest mark over all chunks and lanes: the floor of the weights (rule K).
  int64_t Floor() const;
  // Lanes of which some chunk has not applied `step`, ascending; and the chunks that have not.
  std::vector<int32_t> MissingLanes(int64_t step) const;
  int32_t MissingChunks(int64_t step) const;

 private:
  void Count(int32_t lane);

  const training::SamplePlan& samples_;
  const int64_t total_steps_;
  std::vector<int64_t> marks_;  // by chunk and lane
  std::vector<int64_t> updates_;
  std::vector<int64_t> lowest_;     // by lane
  std::vector<int32_t> at_lowest_;  // by lane: chunks whose mark is the lowest one
};

}  // namespace capstan::exchange::shard

#endif  // CAPSTAN_EXCHANGE_SHARD_LANE_MARKS_H_
