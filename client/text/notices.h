// What a person is always told about a job, even with -q and in a pipe: that it waits and for what,
// and that its checkpoints cannot be saved. Pure text.
#ifndef CAPSTAN_CLIENT_TEXT_NOTICES_H_
#define CAPSTAN_CLIENT_TEXT_NOTICES_H_

#include <string>

#include "absl/time/time.h"
#include "capstan/job/v1/job_service.pb.h"

namespace capstan::client {

// For one job and one thread.
class Notices {
 public:
  // A job that is PENDING for this long counts as waiting. Most jobs start at once.
  static constexpr absl::Duration kPatience = absl::Seconds(2);
  // Between two notices about the wait. The place in the queue changes often.
  static constexpr absl::Duration kInterval = absl::Seconds(10);

  // Lines with their line feeds, mostly none. Call it repeatedly, even while nothing changes.
  // `sees_state`: the person sees the job's state all the time. `now`: monotonic.
  std::string Next(const job::v1::Job& job, bool sees_state, absl::Duration now);

 private:
  std::string Waiting(const job::v1::Job& job, absl::Duration now);
  std::string SaveTroubles(const job::v1::Job& job);

  absl::Duration pending_since_ = absl::InfiniteDuration();
  absl::Duration said_at_ = -absl::InfiniteDuration();
  std::string said_;
  int said_trouble_ = 0;  // 1: no checkpoint can be written; 2: the last version cannot
};

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_TEXT_NOTICES_H_
