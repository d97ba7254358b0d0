// Follows a job, on the screen or silently, until it ends or the person stops watching.
#ifndef CAPSTAN_CLIENT_COMMANDS_FOLLOW_H_
#define CAPSTAN_CLIENT_COMMANDS_FOLLOW_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/console.h"
#include "client/job_client.h"
#include "client/text/exit_codes.h"

namespace capstan::client {

struct FollowOptions {
  enum class Show {
    kNothing,  // prints nothing, only waits
    kEpochs,   // run: a line per epoch, and progress at the bottom of a terminal
    kStates,   // watch: the same, and a line per state; with -o json an object per change
  };
  Show show = Show::kStates;
  // True: the first SIGINT or SIGTERM cancels the job. False: a signal only ends the following.
  bool cancel_on_signal = false;
  // Following ends with this error once it is not OK. Called continually.
  std::function<absl::Status()> health = [] { return absl::OkStatus(); };
  // Following also ends at this state. Not set: only at a terminal state.
  std::optional<common::v1::JobState> until;
  absl::Duration limit = absl::InfiniteDuration();
};

struct Followed {
  enum class End { kReached, kDetached, kTimedOut, kError };
  End end = End::kError;
  job::v1::Job job;    // the newest state, if any arrived
  absl::Status error;  // kError
};

// Blocks. It is an error if the coordinator is away for longer than the client's timeout. While the
// stream is silent, asks for the job: if the disk with its state is full, a coordinator withholds
// what it streams but still answers calls.
Followed Follow(JobClient& client, const std::string& job_id, const FollowOptions& options,
                const Console& console);

// Follows the job for a command of which it is the result. Prints how the job ended (the summary,
// or the job as JSON; for a failed job, also the last lines of its members) and returns the exit
// code. `quiet` prints only JSON.
ExitCode FollowToTheEnd(JobClient& client, const std::string& job_id, const FollowOptions& options,
                        const Console& console);

// For a failed job: prints the last log lines of its tasks and shards.
void PrintProblems(JobClient& client, const std::string& job_id, const Console& console);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COMMANDS_FOLLOW_H_
