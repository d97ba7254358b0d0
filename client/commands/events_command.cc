// `capstan events`: the events of one job, or of all.
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "client/commands/commands.h"
#include "client/commands/look.h"
#include "client/commands/stream_call.h"
#include "client/text/job_json.h"
#include "client/text/log_text.h"

namespace capstan::client {
namespace {

constexpr absl::Duration kEventsReconnect = absl::Milliseconds(200);

struct EventsOptions {
  std::string job_id;
  bool follow = false;
};

// Prints each event once, however often the stream restarts.
class EventPrinter {
 public:
  explicit EventPrinter(const Console& console) : console_(console) {}

  void Take(const job::v1::StreamEventsResponse& response) {
    if (response.number() > 0) {  // 0: the coordinator is older and does not number events
      int64_t& printed = printed_[response.job_id()];
      if (response.number() <= printed) return;
      printed = response.number();
    }
    console_.Out((console_.json() ? EventJson(response.job_id(), response.event())
                                  : EventText(response.job_id(), response.event())) +
                 "\n");
  }

 private:
  const Console& console_;
  std::map<std::string, int64_t> printed_;  // by job: the number printed last
};

ExitCode Events(const EventsOptions& options, JobClient& client, const Console& console) {
  job::v1::StreamEventsRequest request;
  request.set_job_id(options.job_id);
  request.set_follow(options.follow);
  EventPrinter printer(console);
  while (true) {
    const StreamEnd end = ReadStream<job::v1::StreamEventsResponse>(
        options.follow ? absl::InfiniteDuration() : client.timeout(),
        [&](grpc::ClientContext* context) { return client.stub().StreamEvents(context, request); },
        [&](const job::v1::StreamEventsResponse& response) { printer.Take(response); });
    // The stream of one job ends with the job. The stream of all jobs has no end.
    if (end.detached) return options.job_id.empty() ? kExitDone : kExitNotFinished;
    if (end.status.ok()) return kExitDone;
    // Cancelled: the stream was opened while the coordinator was ending its calls.
    if (!options.follow || !(absl::IsUnavailable(end.status) || absl::IsCancelled(end.status))) {
      return ReportJob(client, options.job_id, end.status, console);
    }
    // A restarted coordinator begins with the events that the jobs still hold.
    if (!client.WaitUntilConnected(client.timeout())) return Report(end.status, console);
    absl::SleepFor(kEventsReconnect);
  }
}

}  // namespace

void AddEvents(Command parent, Action& slot) {
  const auto options = std::make_shared<EventsOptions>();
  Command command = parent.Sub("events", "events of a job, or of all jobs");
  command.Add("JOB", options->job_id, "id of the job, or the folder of a run; default: all jobs");
  command.AddSwitch("-f,--follow", options->follow, "continue with new events");
  CarryOut(command, slot, {Output::kTable, Output::kJson}, [options](const Context& context) {
    if (options->job_id.empty()) {
      return WithCoordinator(
          context, [&](JobClient& client) { return Events(*options, client, context.console); });
    }
    return WithJobOrRun(
        context, options->job_id,
        [&](JobClient& client, const std::string& id) {
          options->job_id = id;
          return Events(*options, client, context.console);
        },
        options->follow ? "-f" : "");
  });
}

}  // namespace capstan::client
