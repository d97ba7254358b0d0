// Follows a job on the screen, or silently, until it has ended or the person has seen enough.
#ifndef CAPSTAN_CLIENT_FOLLOW_H_
#define CAPSTAN_CLIENT_FOLLOW_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/console.h"
#include "client/exit_codes.h"
#include "client/job_client.h"

namespace capstan::client {

struct FollowOptions {
  enum class Show {
    kNothing,  // wait
    kEpochs,   // run: a line per epoch, progress at the bottom of a terminal
    kStates,   // watch: the same, and a line per state; with -o json an object per change
  };
  Show show = Show::kStates;
  // True: the first SIGINT or SIGTERM cancels the job. False: it only ends the following.
  bool cancel_on_signal = false;
  // Not OK: there is no sense in going on. Asked all the time.
  std::function<absl::Status()> health = [] { return absl::OkStatus(); };
  // True: while nothing is streamed the coordinator is asked for the job. Where the disk of its state is
  // full it holds back what it streams, and answers all the same.
  bool ask_when_silent = false;
  // This state is enough, too. Not set: a terminal one.
  std::optional<common::v1::JobState> until;
  absl::Duration limit = absl::InfiniteDuration();
};

struct Followed {
  enum class End { kReached, kDetached, kTimedOut, kError };
  End end = End::kError;
  job::v1::Job job;    // the newest state, where there is one
  absl::Status error;  // kError
};

// Blocks. A coordinator that is not there for longer than the client's timeout is an error.
Followed Follow(JobClient& client, const std::string& job_id, const FollowOptions& options,
                const Console& console);

// The same for a command whose result it is: prints how it ended (the summary, or the job as JSON;
// for a job that failed what its members said last) and gives the exit code. `quiet`: only JSON.
ExitCode FollowToTheEnd(JobClient& client, const std::string& job_id, const FollowOptions& options,
                        const Console& console);

// For a job that failed: what its tasks and shards said last.
void PrintProblems(JobClient& client, const std::string& job_id, const Console& console);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_FOLLOW_H_
