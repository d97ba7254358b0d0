// `capstan events`: what happened to one job, or to all.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/job_json.h"
#include "client/log_text.h"
#include "client/stream_call.h"

namespace capstan::client {
namespace {

struct EventsOptions {
  std::string job_id;
  bool follow = false;
};

ExitCode Events(const EventsOptions& options, JobClient& client, const Console& console) {
  job::v1::StreamEventsRequest request;
  request.set_job_id(options.job_id);
  request.set_follow(options.follow);
  const StreamEnd end = ReadStream<job::v1::StreamEventsResponse>(
      options.follow ? absl::InfiniteDuration() : client.timeout(),
      [&](grpc::ClientContext* context) { return client.stub().StreamEvents(context, request); },
      [&](const job::v1::StreamEventsResponse& response) {
        console.Out((console.json() ? EventJson(response.job_id(), response.event())
                                    : EventText(response.job_id(), response.event())) +
                    "\n");
      });
  // Of one job the stream ends with the job; that of all has no end of its own.
  if (end.detached) return options.job_id.empty() ? kExitDone : kExitNotFinished;
  return end.status.ok() ? kExitDone : ReportJob(client, options.job_id, end.status, console);
}

}  // namespace

void AddEvents(Command parent, Action& slot) {
  const auto options = std::make_shared<EventsOptions>();
  Command command = parent.Sub("events", "what happened to a job, or to all");
  command.Add("JOB", options->job_id, "id of the job; without it, of all");
  command.AddSwitch("-f,--follow", options->follow, "go on with new ones");
  CarryOut(command, slot, {Output::kTable, Output::kJson}, [options](const Context& context) {
    return WithCoordinator(
        context, [&](JobClient& client) { return Events(*options, client, context.console); });
  });
}

}  // namespace capstan::client
