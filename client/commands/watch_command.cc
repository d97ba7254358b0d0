// `capstan watch` and `capstan wait`.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/follow.h"
#include "client/text/job_json.h"
#include "services/clock/clock.h"

namespace capstan::client {
namespace {

struct WaitOptions {
  std::vector<std::string> jobs;
  std::string state;
};

// --timeout limits the wait for the jobs. The coordinator's answer has the same limit, but at least
// these seconds.
constexpr absl::Duration kLeastAnswer = absl::Seconds(5);

ExitCode Wait(const WaitOptions& options, Context context) {
  FollowOptions follow;
  follow.show = FollowOptions::Show::kNothing;
  if (!options.state.empty()) {
    const auto state = ReadState(options.state);
    if (!state.ok()) return Report(state.status(), context.console);
    follow.until = *state;
  }
  absl::Duration until = absl::InfiniteDuration();
  if (context.connect.timeout.has_value()) {
    const auto timeout = ReadDuration("--timeout", *context.connect.timeout);
    if (!timeout.ok()) return Report(timeout.status(), context.console);
    until = MonotonicNow() + *timeout;
    context.connect.timeout.reset();
    if (*timeout < kDefaultTimeout) {
      context.connect.timeout = absl::FormatDuration(std::max(*timeout, kLeastAnswer));
    }
  }
  return WithCoordinator(context, [&](JobClient& client) {
    std::vector<NamedJob> jobs;  // named before the first wait, so that @last is the last job now
    for (const std::string& name : options.jobs) {
      jobs.push_back(NameJob(client, name, context.console));
    }
    ExitCode worst = kExitDone;  // the first that is not 0, in the order of the jobs
    for (const NamedJob& job : jobs) {
      follow.limit = std::max(absl::ZeroDuration(), until - MonotonicNow());
      const ExitCode code = job.code != kExitDone
                                ? job.code
                                : FollowToTheEnd(client, job.id, follow, context.console);
      if (worst == kExitDone) worst = code;
    }
    return worst;
  });
}

}  // namespace

void AddWatch(Command parent, Action& slot) {
  const auto job = std::make_shared<std::string>();
  Command watch = parent.Sub(
      "watch", "show a job until it has ended; the exit code tells how. Ctrl-C detaches");
  watch.Add("JOB", *job, "id of the job").Required();
  CarryOut(watch, slot, {Output::kTable, Output::kJson}, [job](const Context& context) {
    return WithJob(context, *job, [&](JobClient& client, const std::string& id) {
      return FollowToTheEnd(client, id, {}, context.console);
    });
  });

  const auto options = std::make_shared<WaitOptions>();
  Command wait = parent.Sub("wait", "wait silently until jobs have ended");
  wait.Add("JOB", options->jobs, "ids of jobs").Required();
  wait.Add("--for", options->state, "end at this state, too: RUNNING, SUSPENDED ...");
  CarryOut(wait, slot, {Output::kTable, Output::kJson},
           [options](const Context& context) { return Wait(*options, context); });
}

}  // namespace capstan::client
