// `capstan top` and `capstan shards`.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "client/commands/commands.h"
#include "client/text/top_text.h"
#include "services/clock/clock.h"
#include "services/server/signals.h"

namespace capstan::client {
namespace {

constexpr int kMaxJobs = 200;
constexpr absl::Duration kLookForKeys = absl::Milliseconds(100);
constexpr char kDefaultInterval[] = "2s";

struct TopOptions {
  std::vector<std::string> what;
  std::string interval;  // empty: kDefaultInterval
  int count = -1;        // not given
};

// Jobs that have not ended.
absl::StatusOr<std::vector<job::v1::Job>> LivingJobs(JobClient& client) {
  job::v1::ListJobsRequest request;
  request.set_limit(kMaxJobs);
  for (const common::v1::JobState state :
       {common::v1::JOB_STATE_PENDING, common::v1::JOB_STATE_STARTING,
        common::v1::JOB_STATE_RUNNING, common::v1::JOB_STATE_RECOVERING,
        common::v1::JOB_STATE_SUSPENDED}) {
    request.add_states(state);
  }
  return client.ListJobs(request);
}

ExitCode Top(const TopOptions& options, absl::Duration interval, JobClient& client,
             const Console& console) {
  TopView view;
  if (!options.what.empty()) {
    const std::set<std::string> what(options.what.begin(), options.what.end());
    view.nodes = what.count("nodes") > 0;
    view.shards = what.count("shards") > 0;
    view.jobs = what.count("jobs") > 0;
  }
  LiveArea area(console);
  const int count = options.count >= 0 ? options.count : area.on() ? 0 : 1;
  const bool live = area.on() && count != 1;
  view.width = console.stdout_tty ? console.width : 0;
  services::ShutdownSignal& signal = services::ShutdownSignal::Install();
  Keyboard keys;
  absl::StatusOr<job::v1::ListNodesResponse> nodes;
  absl::StatusOr<std::vector<job::v1::Job>> jobs;
  const auto draw = [&] {
    view.width = SizeOfTerminal().width - 1;
    area.Draw(std::string(absl::StripSuffix(TopText(*nodes, *jobs, view), "\n")));
  };
  // False: the person wants to leave.
  const auto rest = [&] {
    const absl::Duration until = MonotonicNow() + interval;
    while (MonotonicNow() < until) {
      const absl::Duration look = std::min(until - MonotonicNow(), kLookForKeys);
      const bool reads = live && keys.there();
      if (reads && keys.WaitFor('q', look)) return false;
      if (signal.WaitFor(reads ? absl::ZeroDuration() : look)) return false;
      if (area.Resized()) draw();
    }
    return true;
  };
  for (int shown = 0; count == 0 || shown < count; ++shown) {
    if (shown > 0 && !rest()) break;
    nodes = client.ListNodes();
    if (!nodes.ok()) return Report(nodes.status(), console);
    jobs = LivingJobs(client);
    if (!jobs.ok()) return Report(jobs.status(), console);
    if (console.json()) {
      console.Out(TopJson(*nodes, *jobs) + "\n");
    } else if (live) {
      draw();
    } else {
      console.Out(TopText(*nodes, *jobs, view));
    }
  }
  return kExitDone;
}

ExitCode Shards(const std::string& job_id, JobClient& client, const Console& console) {
  std::vector<job::v1::Job> jobs;
  if (job_id.empty()) {
    const auto living = LivingJobs(client);
    if (!living.ok()) return Report(living.status(), console);
    jobs = *living;
  } else {
    const auto job = client.Get(job_id);
    if (!job.ok()) return ReportJob(client, job_id, job.status(), console);
    jobs.push_back(*job);
  }
  if (console.json()) {
    console.Out(ShardsJson(jobs) + "\n");
  } else if (std::all_of(jobs.begin(), jobs.end(),
                         [](const job::v1::Job& job) { return job.shards().empty(); })) {
    console.Note("no shards\n");
  } else {
    console.Out(
        ShardsText(jobs, console.output == Output::kWide, console.stdout_tty ? console.width : 0));
  }
  return kExitDone;
}

}  // namespace

void AddTop(Command parent, Action& slot) {
  const auto options = std::make_shared<TopOptions>();
  Command top =
      parent.Sub("top", "what nodes, shards and jobs do: live on a terminal until q, else once");
  top.Add("WHAT", options->what, "nodes | shards | jobs; default all")
      .OneOf({"nodes", "shards", "jobs"});
  top.Add("--interval", options->interval, "time between two updates, default 2s");
  top.Add("--count", options->count, "end after this many updates; 0: never").Between(0, 1000000);
  CarryOut(top, slot, {Output::kTable, Output::kJson}, [options](const Context& context) {
    const Console& console = context.console;
    if (!options->what.empty() && console.json()) {
      return RefuseFlag(options->what[0], "-o json has nodes, shards and jobs", console);
    }
    const bool live = console.stdout_tty && console.stderr_tty && !console.json();
    if (!options->interval.empty() && (options->count == 1 || (options->count < 0 && !live))) {
      return RefuseFlag("--interval", "there is one update; --count asks for more", console);
    }
    const auto interval = ReadDuration(
        "--interval", options->interval.empty() ? kDefaultInterval : options->interval);
    if (!interval.ok()) return Report(interval.status(), context.console);
    return WithCoordinator(context, [&](JobClient& client) {
      return Top(*options, *interval, client, context.console);
    });
  });

  const auto job = std::make_shared<std::string>();
  Command shards =
      parent.Sub("shards", "where the shards of a job, or of all jobs, are and what they do");
  shards.Add("JOB", *job, "id of the job; default: all that have not ended");
  CarryOut(shards, slot, {Output::kTable, Output::kWide, Output::kJson},
           [job](const Context& context) {
             if (job->empty()) {
               return WithCoordinator(
                   context, [&](JobClient& client) { return Shards("", client, context.console); });
             }
             return WithJob(context, *job, [&](JobClient& client, const std::string& id) {
               return Shards(id, client, context.console);
             });
           });
}

}  // namespace capstan::client
