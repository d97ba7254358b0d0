// When the paces of workers are weighed, and when lanes move because they were uneven.
#ifndef CAPSTAN_COORDINATOR_CORE_LANE_PACES_H_
#define CAPSTAN_COORDINATOR_CORE_LANE_PACES_H_

#include <cstdint>

#include "absl/time/time.h"

namespace capstan::coordinator::core {

// Paces that were uneven so many times in a row move lanes.
inline constexpr int kUnevenInARow = 2;

// Not thread-safe. `now` is the core's clock.
class LanePaces {
 public:
  // The paces of this generation have not been looked at yet.
  bool IsNew(int64_t generation) const { return generation_ != generation; }
  bool Due(absl::Duration now, absl::Duration every) const { return now - weighed_at_ >= every; }
  void NoteWeighed(int64_t generation, absl::Duration now);

  // Whether lanes move after paces were weighed. `uneven`: they were far apart, and to move lanes is worth
  // it. `tried`: a worker had a lane on trial, so lanes move in any case. Each move for uneven paces asks
  // for more patience before the next; after a while without one the patience is short again.
  bool Moves(bool uneven, bool tried, absl::Duration now);
  void NoteMoved() { uneven_ = 0; }

  void BeginLineage() { generation_ = 0; }

  // Generations that only moved lanes between workers. They are no progress of the job.
  int64_t moves() const { return moves_; }
  void CountMove() { ++moves_; }

 private:
  int64_t generation_ = 0;     // whose paces are being weighed,
  absl::Duration weighed_at_;  // since then
  int uneven_ = 0;             // how many times in a row they were far apart
  int redeals_ = 0;            // recent moves for uneven paces
  absl::Duration redealt_at_;  // the last of them
  int64_t moves_ = 0;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_LANE_PACES_H_
