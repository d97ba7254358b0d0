// `capstan submit`: checks a job file, prints its plan and sends it to the coordinator.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/checkpoint_files.h"
#include "client/commands/commands.h"
#include "client/commands/follow.h"
#include "client/commands/validate_command.h"
#include "services/proto_json/proto_json.h"
#include "training/spec/resolve.h"

namespace capstan::client {
namespace {

using services::Dump;

struct SubmitOptions {
  JobSource source;
  std::string request_id;
  bool follow = false;
  bool wait = false;
  bool dry_run = false;
};

// Prints the plan if the data can be read from here. The workers check the data in any case.
ExitCode ShowPlan(const job::v1::JobSpec& spec, const JobPlaces& places, const Console& console) {
  const absl::StatusOr<job::v1::ResolvedSpec> plan = ResolveHere(spec);
  if (plan.ok()) {
    console.Note(training::spec::PlanText(*plan));
    return kExitDone;
  }
  if (absl::IsNotFound(plan.status())) {
    console.Note(
        absl::StrCat("no plan, the data is not on this host: ", plan.status().message(), "\n"));
    return kExitDone;
  }
  console.Err(ErrorLine(places, plan.status().message()));
  return kExitUsage;
}

ExitCode SubmitTo(JobClient& client, job::v1::JobSpec spec, const SubmitOptions& options,
                  const Console& console) {
  if (absl::Status status = ResolveInitialWeights(client, spec); !status.ok()) {
    return Report(status, console);
  }
  job::v1::SubmitJobRequest request;
  request.set_request_id(options.request_id.empty() ? NewRequestId() : options.request_id);
  *request.mutable_spec() = std::move(spec);
  const auto answer = client.Call(&JobClient::Stub::SubmitJob, request);
  if (!answer.ok()) {
    const ExitCode code = Report(answer.status(), console);
    if (code == kExitUnreachable) {
      console.Note(absl::StrCat("it may have been accepted: with --request-id ",
                                request.request_id(), " it cannot be submitted twice\n"));
    }
    return code;
  }
  const std::string& job_id = answer->job_id();
  if (!options.follow && !options.wait) {
    if (console.json()) {
      console.Out(Dump({{"job_id", job_id}, {"existed", answer->existed()}}) + "\n");
    } else {
      if (answer->existed()) console.Note("accepted before, under the same request id\n");
      console.Out(job_id + "\n");
    }
    return kExitDone;
  }
  console.Note(job_id + "\n");
  FollowOptions follow;
  follow.show = options.follow ? FollowOptions::Show::kStates : FollowOptions::Show::kNothing;
  const ExitCode code = FollowToTheEnd(client, job_id, follow, console);
  if (!options.follow && !console.json()) console.Out(job_id + "\n");
  return code;
}

ExitCode Submit(const SubmitOptions& options, const Context& context) {
  if (const ExitCode code = NeedSource(options.source, context.console); code != kExitDone)
    return code;
  const bool name_alone = context.console.output == Output::kName;
  if (options.dry_run) {
    if (const ExitCode code = RefuseConnection(context, "--dry-run calls no coordinator");
        code != kExitDone) {
      return code;
    }
    if (name_alone) {
      return RefuseFlag("-o name", "--dry-run submits nothing", context.console);
    }
    return Validate({options.source, false}, context.console);
  }
  if (name_alone && options.follow) {
    return RefuseFlag("-o name", "-f shows the job until it has ended", context.console);
  }
  JobPlaces places;
  absl::StatusOr<job::v1::JobSpec> spec = LoadJob(options.source, context.console, places);
  if (!spec.ok()) return Report(spec.status(), context.console);
  if (const ExitCode code = ShowPlan(*spec, places, context.console); code != kExitDone)
    return code;
  return WithCoordinator(context, [&](JobClient& client) {
    return SubmitTo(client, *spec, options, context.console);
  });
}

}  // namespace

void AddSubmit(Command parent, Action& slot) {
  const auto options = std::make_shared<SubmitOptions>();
  Command command =
      parent.Sub("submit", "hand a job to the coordinator; prints its id and returns");
  AddJobSource(command, options->source);
  Flag request = command.Add("--request-id", options->request_id,
                             "id of this submission; repeating it returns the same job");
  Flag follow = command.AddSwitch("-f,--follow", options->follow,
                                  "show the job until it has ended; Ctrl-C detaches");
  Flag wait = command.AddSwitch("--wait", options->wait, "wait silently until it has ended");
  wait.Excludes(follow);
  command.AddSwitch("--dry-run", options->dry_run, "check and print the plan; nothing is sent")
      .Excludes(request)
      .Excludes(follow)
      .Excludes(wait);
  CarryOut(command, slot, {Output::kTable, Output::kJson, Output::kName},
           [options](const Context& context) { return Submit(*options, context); });
}

}  // namespace capstan::client
