// `capstan logs`: what the tasks, the shards and the coordinator logged about a job.
#include <re2/re2.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/commands/commands.h"
#include "client/commands/stream_call.h"
#include "client/text/job_json.h"
#include "client/text/log_text.h"

namespace capstan::client {
namespace {

constexpr absl::Duration kReconnect = absl::Milliseconds(200);

struct LogsOptions {
  std::string job_id;
  bool follow = false;
  std::vector<std::string> roles;
  std::optional<int> rank;
  int tail = 0;
  std::string since;
  std::string level;
  std::string grep;
  bool timestamps = false;
};

absl::StatusOr<common::v1::Role> ReadRole(const std::string& text) {
  if (text == "worker") return common::v1::ROLE_WORKER;
  if (text == "shard" || text == "param_store") return common::v1::ROLE_PARAM_STORE;
  if (text == "coordinator") return common::v1::ROLE_COORDINATOR;
  return absl::InvalidArgumentError(
      absl::StrCat("--role: got '", text, "', want worker, shard or coordinator"));
}

absl::StatusOr<job::v1::StreamLogsRequest> MakeRequest(const LogsOptions& options) {
  job::v1::StreamLogsRequest request;
  request.set_job_id(options.job_id);
  request.set_follow(options.follow);
  for (const std::string& word : options.roles) {
    for (const std::string& text : std::vector<std::string>(absl::StrSplit(word, ','))) {
      const auto role = ReadRole(text);
      if (!role.ok()) return role.status();
      request.add_roles(*role);
    }
  }
  if (options.rank.has_value()) request.set_index(*options.rank);
  request.set_tail(options.tail);
  request.set_level(options.level);
  if (!options.since.empty()) {
    const auto since = ReadDuration("--since", options.since);
    if (!since.ok()) return since.status();
    const int64_t nanos = absl::ToUnixNanos(absl::Now() - *since);
    request.mutable_since()->set_seconds(nanos / 1000000000);
    request.mutable_since()->set_nanos(static_cast<int32_t>(nanos % 1000000000));
  }
  return request;
}

// Prints matching lines, and remembers its place for the next connection.
class Printer {
 public:
  Printer(const LogsOptions& options, const RE2* grep, const Console& console)
      : options_(options), grep_(grep), console_(console) {}

  void Take(const job::v1::StreamLogsResponse& response) {
    if (response.dropped() > 0 && !console_.json()) {
      console_.Note(absl::StrCat(response.dropped(), " older lines are gone\n"));
    }
    if (!response.has_line()) return;
    const job::v1::LogLine& line = response.line();
    const bool same =
        line.time().seconds() == last_.seconds() && line.time().nanos() == last_.nanos();
    if (skip_ > 0 && same) {
      --skip_;  // printed before the connection broke
      return;
    }
    skip_ = 0;
    printed_ = same ? printed_ + 1 : 1;
    last_ = line.time();
    if (grep_ != nullptr && !RE2::PartialMatch(line.text(), *grep_)) return;
    if (console_.json()) {
      console_.Out(LogJson(response) + "\n");
    } else {
      console_.Out(LogText(line, {options_.timestamps, console_.stdout_color}) + "\n");
    }
  }

  // Sets the request to begin behind the last line printed.
  void Resume(job::v1::StreamLogsRequest& request) {
    if (printed_ == 0) return;
    *request.mutable_since() = last_;
    request.set_tail(0);
    skip_ = printed_;
  }

 private:
  const LogsOptions& options_;
  const RE2* grep_;
  const Console& console_;
  google::protobuf::Timestamp last_;
  int64_t printed_ = 0;  // lines with the time `last_`
  int64_t skip_ = 0;
};

ExitCode PrintLogs(JobClient& client, job::v1::StreamLogsRequest request,
                   const LogsOptions& options, const RE2* grep, const Console& console) {
  Printer printer(options, grep, console);
  while (true) {
    const StreamEnd end = ReadStream<job::v1::StreamLogsResponse>(
        options.follow ? absl::InfiniteDuration() : client.timeout(),
        [&](grpc::ClientContext* context) { return client.stub().StreamLogs(context, request); },
        [&](const job::v1::StreamLogsResponse& response) { printer.Take(response); });
    if (end.detached) {
      console.Note(absl::StrCat("detached: ", options.job_id, " continues\n"));
      return kExitNotFinished;
    }
    if (end.status.ok()) break;
    // Cancelled: it was opened while the coordinator was ending its calls.
    if (!options.follow || !(absl::IsUnavailable(end.status) || absl::IsCancelled(end.status))) {
      return ReportJob(client, options.job_id, end.status, console);
    }
    if (!client.WaitUntilConnected(client.timeout())) return Report(end.status, console);
    absl::SleepFor(kReconnect);
    printer.Resume(request);
  }
  if (!options.follow) return kExitDone;
  const auto job = client.Get(options.job_id);
  return job.ok() ? ExitCodeOf(job->state())
                  : ReportJob(client, options.job_id, job.status(), console);
}

ExitCode Logs(LogsOptions options, const Context& context) {
  if (options.timestamps && context.console.json()) {
    return RefuseFlag("--timestamps", "-o json has the time of every line", context.console);
  }
  auto request = MakeRequest(options);
  if (!request.ok()) return Report(request.status(), context.console);
  std::unique_ptr<const RE2> grep;
  if (!options.grep.empty()) {
    grep = std::make_unique<const RE2>(options.grep, RE2::Quiet);
    if (!grep->ok()) {
      return Report(
          absl::InvalidArgumentError(absl::StrCat("--grep: '", options.grep, "': ", grep->error())),
          context.console);
    }
  }
  return WithJob(context, options.job_id, [&](JobClient& client, const std::string& id) {
    options.job_id = id;
    request->set_job_id(id);
    return PrintLogs(client, *request, options, grep.get(), context.console);
  });
}

}  // namespace

void AddLogs(Command parent, Action& slot) {
  const auto options = std::make_shared<LogsOptions>();
  Command command = parent.Sub("logs", "log lines of a job's processes, oldest first");
  command.Add("JOB", options->job_id, "id of the job").Required();
  command.AddSwitch("-f,--follow", options->follow,
                    "continue with new lines until the job has ended; the exit code tells how");
  command.AddRepeated("--role", options->roles, "ROLE",
                      "only these roles: worker,shard,coordinator");
  command.Add("--rank", options->rank, "only the worker of this rank, or shard of this index")
      .Between(0, 1000000);
  command.Add("--tail", options->tail, "only the last lines, counted before --grep")
      .Between(1, 1000000);
  command.Add("--since", options->since, "only lines of the last 30s, 5m, 4h ...");
  command.Add("--level", options->level, "this level and above: debug | info | warning | error")
      .OneOf({"debug", "info", "warning", "error"});
  command.Add("--grep", options->grep, "only lines in which this regular expression is found");
  command.AddSwitch("--timestamps", options->timestamps, "print the time before each line");
  CarryOut(command, slot, {Output::kTable, Output::kJson},
           [options](const Context& context) { return Logs(*options, context); });
}

}  // namespace capstan::client
