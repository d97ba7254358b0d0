// `capstan cancel`, `suspend`, `resume`, `retry` and `update`: changes to a job.
#include <unistd.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/commands.h"
#include "client/text/job_json.h"
#include "client/text/job_view.h"
#include "services/proto_json/proto_json.h"
#include "training/spec/resolve.h"

namespace capstan::client {
namespace {

using services::Dump;
using services::ProtoJson;

// Prints "lenet-x3n9  SUSPENDED", or an object. The coordinator has accepted the change but may not
// have completed it; `text` then says what is under way.
void PrintState(const std::string& job_id, common::v1::JobState state, const std::string& text,
                const Console& console) {
  console.Out(console.json() ? Dump({{"job_id", job_id}, {"state", StateName(state)}}) + "\n"
                             : absl::StrCat(job_id, "  ", text, "\n"));
}

struct CancelOptions {
  std::vector<std::string> jobs;
  bool yes = false;
};

// Asks only about several jobs, since they are more often a slip of the hand than one is.
ExitCode Confirm(const std::vector<std::string>& ids, const Console& console) {
  console.Err(absl::StrCat("cancel ", absl::StrJoin(ids, ", "), "? [y/N] "));
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "yes" ? kExitDone : kExitInterrupted;
}

ExitCode Cancel(const CancelOptions& options, const Context& context) {
  const bool ask = options.jobs.size() > 1 && !options.yes;
  if (ask && !context.console.may_ask) {
    context.console.Err(
        "capstan: cancel asks about several jobs on a terminal; without one, give -y\n");
    return kExitUsage;
  }
  return WithCoordinator(context, [&](JobClient& client) {
    ExitCode worst = kExitDone;
    std::vector<std::string> ids;
    for (const std::string& name : options.jobs) {
      const NamedJob job = NameJob(client, name, context.console);
      if (job.code == kExitDone) ids.push_back(job.id);
      if (worst == kExitDone) worst = job.code;
    }
    if (ids.empty()) return worst;
    if (const ExitCode code = ask ? Confirm(ids, context.console) : kExitDone; code != kExitDone) {
      return code;
    }
    for (const std::string& job_id : ids) {
      job::v1::CancelJobRequest request;
      request.set_job_id(job_id);
      const auto answer = client.Call(&JobClient::Stub::CancelJob, request);
      if (answer.ok()) {
        PrintState(job_id, answer->state(), CancelledText(answer->state()), context.console);
      } else {
        const ExitCode code = ReportJob(client, job_id, answer.status(), context.console);
        if (worst == kExitDone) worst = code;
      }
    }
    return worst;
  });
}

void AddCancel(Command parent, Action& slot) {
  const auto options = std::make_shared<CancelOptions>();
  Command command = parent.Sub("cancel", "end jobs; `capstan wait` waits for the end");
  command.Add("JOB", options->jobs, "ids of jobs").Required();
  command.AddSwitch("-y,--yes", options->yes, "cancel several jobs without asking");
  CarryOut(command, slot, {Output::kTable, Output::kJson},
           [options](const Context& context) { return Cancel(*options, context); });
}

// Adds a command for one job whose response holds a state.
template <typename Request, typename Response>
void AddSimple(Command parent, Action& slot, const char* name, const char* help,
               grpc::Status (JobClient::Stub::*method)(grpc::ClientContext*, const Request&,
                                                       Response*),
               const std::function<void(Command, Request&)>& flags,
               const std::function<void(const Response&, const Console&)>& more,
               std::string (*text)(common::v1::JobState) = StateName) {
  const auto request = std::make_shared<Request>();
  const auto job_id = std::make_shared<std::string>();
  Command command = parent.Sub(name, help);
  command.Add("JOB", *job_id, "id of the job").Required();
  flags(command, *request);
  CarryOut(command, slot, {Output::kTable, Output::kJson},
           [request, job_id, method, more, text](const Context& context) {
             return WithJob(context, *job_id, [&](JobClient& client, const std::string& id) {
               request->set_job_id(id);
               const auto answer = client.Call(method, *request);
               if (!answer.ok()) return ReportJob(client, id, answer.status(), context.console);
               more(*answer, context.console);
               PrintState(id, answer->state(), text(answer->state()), context.console);
               return kExitDone;
             });
           });
}

void AddResume(Command parent, Action& slot) {
  AddSimple<job::v1::ResumeJobRequest, job::v1::ResumeJobResponse>(
      parent, slot, "resume", "put a suspended job back into the queue; the result stays the same",
      &JobClient::Stub::ResumeJob,
      [](Command command, job::v1::ResumeJobRequest& request) {
        command
            .Add(
                "--num-workers", [&request](int count) { request.set_num_workers(count); },
                "continue with this many workers; default: as before")
            .Between(1, 1024);
        command
            .Add(
                "--num-shards", [&request](int count) { request.set_num_shards(count); },
                "continue with this many shards; default: as before")
            .Between(1, 256);
      },
      [](const job::v1::ResumeJobResponse&, const Console&) {});
}

struct UpdateFlags {
  std::string job_id;
  std::optional<double> learning_rate;
  std::optional<std::string> max_staleness;
  std::optional<int> max_restarts;
  bool checkpoint = false;
};

ExitCode Update(const UpdateFlags& options, const Context& context) {
  job::v1::UpdateJobRequest request;
  if (options.learning_rate.has_value()) request.set_learning_rate(*options.learning_rate);
  if (options.max_restarts.has_value()) request.set_max_restarts(*options.max_restarts);
  request.set_checkpoint(options.checkpoint);
  if (options.max_staleness.has_value()) {
    int64_t steps = training::spec::kUnboundedStaleness;
    if (*options.max_staleness != "any" &&
        (!absl::SimpleAtoi(*options.max_staleness, &steps) || steps < 0)) {
      context.console.Err(
          absl::StrCat("capstan: --max-staleness: want a number from 0 on or 'any', ", "got '",
                       *options.max_staleness, "'\n"));
      return kExitUsage;
    }
    request.set_max_staleness(steps);
  }
  if (!options.learning_rate.has_value() && !options.max_staleness.has_value() &&
      !options.max_restarts.has_value() && !options.checkpoint) {
    context.console.Err(
        "capstan: nothing to change: give --learning-rate, --max-staleness, --max-restarts or "
        "--checkpoint\n");
    return kExitUsage;
  }
  return WithJob(context, options.job_id, [&](JobClient& client, const std::string& id) {
    request.set_job_id(id);
    const auto answer = client.Call(&JobClient::Stub::UpdateJob, request);
    const Console& console = context.console;
    if (!answer.ok()) return ReportJob(client, id, answer.status(), console);
    if (console.json()) {
      console.Out(Dump({{"job_id", id}, {"order_ids", ProtoJson(*answer)["order_ids"]}}) + "\n");
    } else if (!answer->order_ids().empty()) {
      console.Out(absl::StrCat("order ", absl::StrJoin(answer->order_ids(), ", "),
                               ": capstan events ", id, " says at which step\n"));
    }
    return kExitDone;
  });
}

void AddUpdate(Command parent, Action& slot) {
  const auto options = std::make_shared<UpdateFlags>();
  Command command = parent.Sub("update", "change settings of a job that has not ended");
  command.Add("JOB", options->job_id, "id of the job").Required();
  command.Add("--learning-rate", options->learning_rate,
              "base rate of the schedule from the next step on");
  command.Add(
      "--max-staleness", options->max_staleness,
      "of an asynchronous job: steps that a lane may be ahead of the slowest one, or 'any'");
  command.Add("--max-restarts", options->max_restarts, "limit for the whole job").Between(0, 1000);
  command.AddSwitch("--checkpoint", options->checkpoint, "save a checkpoint as soon as possible");
  CarryOut(command, slot, {Output::kTable, Output::kJson},
           [options](const Context& context) { return Update(*options, context); });
}

}  // namespace

void AddControl(Command parent, Action& slot) {
  AddCancel(parent, slot);
  AddSimple<job::v1::SuspendJobRequest, job::v1::SuspendJobResponse>(
      parent, slot, "suspend", "save a checkpoint and give all devices back",
      &JobClient::Stub::SuspendJob, [](Command, job::v1::SuspendJobRequest&) {},
      [](const job::v1::SuspendJobResponse&, const Console&) {}, SuspendedText);
  AddResume(parent, slot);
  AddSimple<job::v1::RetryJobRequest, job::v1::RetryJobResponse>(
      parent, slot, "retry",
      "put a failed or cancelled job back; it continues from its last checkpoint",
      &JobClient::Stub::RetryJob, [](Command, job::v1::RetryJobRequest&) {},
      [](const job::v1::RetryJobResponse& answer, const Console& console) {
        console.Note(answer.from().empty() ? "from the initial weights\n"
                                           : absl::StrCat("from ", answer.from(), "\n"));
      });
  AddUpdate(parent, slot);
}

}  // namespace capstan::client
