#include "client/commands/command.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/job_name.h"
#include "client/run_folder.h"
#include "client/text/job_view.h"
#include "services/flags/flags.h"
#include "training/spec/nearest.h"

namespace capstan::client {
namespace {

// README.md, "Services by hand", has the same with several services of each kind.
constexpr char kHowToStart[] =
    "Name one by --address or CAPSTAN_ADDRESS, or once by capstan login ADDRESS. To start one "
    "here, "
    "with the services that capstan submit --example lenet needs:\n"
    "  D=$(mktemp -d)\n"
    "  capstan_coordinator --listen unix:$D/c.sock --http off --state-dir $D/state &\n"
    "  capstan_param_store --listen unix:$D/s0.sock --http off --coordinator unix:$D/c.sock "
    "--node s0 &\n"
    "  capstan_param_store --listen unix:$D/s1.sock --http off --coordinator unix:$D/c.sock "
    "--node s1 &\n"
    "  capstan_gpu_worker --listen unix:$D/w0.sock --http off --coordinator unix:$D/c.sock "
    "--node w0 --devices cpu,cpu &\n"
    "  export CAPSTAN_ADDRESS=unix:$D/c.sock\n"
    "capstan run trains one job without a coordinator.\n";

const char* OutputName(Output output) {
  switch (output) {
    case Output::kTable:
      return "table";
    case Output::kWide:
      return "wide";
    case Output::kJson:
      return "json";
    case Output::kYaml:
      return "yaml";
    case Output::kName:
      return "name";
    case Output::kCsv:
      return "csv";
  }
  return "";
}

}  // namespace

void CarryOut(Command command, Action& slot, std::set<Output> outputs, Action action, Acts acts) {
  const std::string name = command.name();
  command.WhenGiven([&slot, name, outputs = std::move(outputs), action = std::move(action), acts] {
    slot = [name, outputs, action, acts](const Context& context) {
      const std::string flag = acts.coordinator ? "" : GivenFlag(context.connect);
      if (!flag.empty()) {
        return RefuseFlag(flag, absl::StrCat(name, " does not call a running coordinator"),
                          context.console);
      }
      if (!acts.timeout && context.connect.timeout.has_value()) {
        return RefuseFlag("--timeout", absl::StrCat(name, " does not wait for an answer"),
                          context.console);
      }
      if (!acts.verbose && context.console.verbose) {
        return RefuseFlag("-v", absl::StrCat(name, " starts no services whose log it could print"),
                          context.console);
      }
      if (outputs.count(context.console.output) != 0) return action(context);
      std::string known;
      for (const Output output : outputs) {
        absl::StrAppend(&known, known.empty() ? "" : ", ", OutputName(output));
      }
      context.console.Err(absl::StrCat("capstan: ", name, " has no -o ",
                                       OutputName(context.console.output), "; it has ", known,
                                       "\n"));
      return kExitUsage;
    };
  });
}

std::string GivenFlag(const ConnectFlags& flags) {
  if (flags.insecure) return "--insecure";
  const std::pair<const char*, const std::optional<std::string>*> all[] = {
      {"--context", &flags.context}, {"--address", &flags.address},
      {"--tls-ca", &flags.tls_ca},   {"--tls-cert", &flags.tls_cert},
      {"--tls-key", &flags.tls_key}, {"--token-file", &flags.token_file},
  };
  for (const auto& [name, value] : all) {
    if (value->has_value()) return name;
  }
  return "";
}

ExitCode RefuseConnection(const Context& context, const std::string& why) {
  std::string flag = GivenFlag(context.connect);
  if (flag.empty() && context.connect.timeout.has_value()) flag = "--timeout";
  return flag.empty() ? kExitDone : RefuseFlag(flag, why, context.console);
}

ExitCode RefuseFlag(const std::string& flag, const std::string& why, const Console& console) {
  console.Err(absl::StrCat("capstan: ", flag, " would do nothing: ", why, "\n"));
  return kExitUsage;
}

absl::StatusOr<Connection> FindCoordinator(const Context& context) {
  absl::StatusOr<Connection> connection = FindCoordinator(context.connect);
  if (!connection.ok()) return connection;
  for (const std::string& note : connection->notes) {
    context.console.Note(absl::StrCat("capstan: ", note, "\n"));
  }
  return connection;
}

ExitCode NeedCoordinator(const Connection& connection, const Console& console) {
  if (connection.configured) return kExitDone;
  std::string text = absl::StrCat("capstan: no coordinator is configured. ", kHowToStart);
  if (CheckRunsIn(kDefaultRunsFolder).ok()) {
    absl::StrAppend(&text, "To list the runs here: capstan list ", kDefaultRunsFolder, "\n");
  }
  console.Err(text);
  return kExitUsage;
}

ExitCode WithCoordinator(const Context& context, const std::function<ExitCode(JobClient&)>& body) {
  const absl::StatusOr<Connection> connection = FindCoordinator(context);
  if (!connection.ok()) return Report(connection.status(), context.console);
  if (const ExitCode code = NeedCoordinator(*connection, context.console); code != kExitDone) {
    return code;
  }
  return WithConnection(*connection, context.console, body);
}

ExitCode WithConnection(const Connection& connection, const Console& console,
                        const std::function<ExitCode(JobClient&)>& body) {
  auto client = JobClient::Connect(connection);
  if (!client.ok()) {
    Report(client.status(), console);
    return kExitUsage;  // contradicting flags: nothing was sent
  }
  const absl::Status there = (*client)->AwaitConnection(connection, [&] {
    console.Note(
        absl::StrCat("waiting for the coordinator at ", connection.address.ToString(), "\n"));
  });
  if (!there.ok()) return Report(there, console);
  return body(**client);
}

NamedJob NameJob(JobClient& client, const std::string& name, const Console& console) {
  const absl::StatusOr<std::string> id = FindJob(client, name);
  if (id.ok()) return {*id, kExitDone};
  const ExitCode code = Report(id.status(), console);
  return {name, absl::IsNotFound(id.status()) ? kExitNotFound : code};
}

ExitCode WithJob(const Context& context, const std::string& name,
                 const std::function<ExitCode(JobClient&, const std::string&)>& body) {
  return WithCoordinator(context, [&](JobClient& client) {
    const NamedJob job = NameJob(client, name, context.console);
    return job.code == kExitDone ? body(client, job.id) : job.code;
  });
}

ExitCode Report(const absl::Status& status, const Console& console) {
  if (!status.message().empty()) {
    console.Err(absl::StrCat("capstan: ", Printable(std::string(status.message())), "\n"));
  } else if (absl::IsUnimplemented(status)) {  // a coordinator of 0.1 does not say its version
    console.Err("capstan: the coordinator is older than this command and does not know it\n");
  }
  return ExitCodeOf(status);
}

ExitCode ReportJob(JobClient& client, const std::string& job_id, const absl::Status& status,
                   const Console& console) {
  if (!absl::IsNotFound(status)) return Report(status, console);
  // The job exists, so something else was not found.
  if (client.Get(job_id).ok()) return Report(status, console);
  std::vector<std::string> ids;
  if (const auto jobs = client.Call(&JobClient::Stub::ListJobs, job::v1::ListJobsRequest());
      jobs.ok()) {
    for (const job::v1::Job& job : jobs->jobs()) ids.push_back(job.job_id());
  }
  const std::string near = training::spec::Nearest(job_id, ids);
  console.Err(absl::StrCat(
      "capstan: ", Printable(std::string(status.message())),
      near.empty() ? "; see capstan list" : absl::StrCat(" (did you mean '", near, "'?)"), "\n"));
  return kExitNotFound;
}

absl::StatusOr<absl::Duration> ReadDuration(const std::string& flag, const std::string& text) {
  const absl::StatusOr<absl::Duration> duration = services::ParseFlagDuration(text);
  if (duration.ok()) return duration;
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", duration.status().message()));
}

}  // namespace capstan::client
