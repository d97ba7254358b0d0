// How long a job has not got on, and what people were told of it.
#ifndef CAPSTAN_COORDINATOR_CORE_WAITING_H_
#define CAPSTAN_COORDINATOR_CORE_WAITING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace capstan::coordinator::core {

// Not thread-safe. `now` is the core's clock.
class Waiting {
 public:
  // Numbers that only grow while the job gets on, always as many of them. True: one is greater than
  // ever since BeginAnew, so the job's time begins again.
  bool Note(const std::vector<int64_t>& mark, absl::Duration now);
  // The job's time begins again with the next Note, whatever its numbers are.
  void BeginAnew() { mark_.clear(); }
  // The job's time begins again now.
  void Excuse(absl::Duration now) { since_ = now; }
  absl::Duration Waited(absl::Duration now) const { return now - since_; }

  // True once a second: then people may be told something new.
  bool TimeToSay(absl::Duration now);
  // True once a minute, and for the first time after the job got on: then its log gets a line.
  bool TimeToLog(absl::Duration now);

  // What people see in place of the job's message; empty: they see the message.
  const std::string& text() const { return text_; }
  // False: it was said already.
  bool Say(std::string text);
  // False: nothing was said.
  bool SayNothing();

 private:
  std::string text_;
  std::vector<int64_t> mark_;  // componentwise maximum so far
  absl::Duration since_;       // when a component last grew
  absl::Duration said_at_ = -absl::InfiniteDuration();
  absl::Duration logged_at_ = -absl::InfiniteDuration();
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_WAITING_H_
