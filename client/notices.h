// What a person is told of a job whatever he asked to see, also with -q and in a pipe: that it waits,
// and what for; that its checkpoints cannot be saved. Pure text.
#ifndef CAPSTAN_CLIENT_NOTICES_H_
#define CAPSTAN_CLIENT_NOTICES_H_

#include <string>

#include "absl/time/time.h"
#include "capstan/job/v1/job_service.pb.h"

namespace capstan::client {

// For one job and one thread.
class Notices {
 public:
  // A job that is there for so long, in one piece, waits. Most start at once.
  static constexpr absl::Duration kPatience = absl::Seconds(2);
  // Between two words about what it waits for: its place in the queue changes often.
  static constexpr absl::Duration kInterval = absl::Seconds(10);

  // Lines with their line feeds, mostly none. To be asked again and again, also while nothing
  // changes. `sees_state`: the person has the job's state before him all the time. `now`: monotonic.
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

#endif  // CAPSTAN_CLIENT_NOTICES_H_
