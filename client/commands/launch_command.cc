// `capstan launch`: trains one job on services that a launcher starts, on this host or on many.
// `capstan launch-node`: the launcher runs it on each host. `capstan launch-batch`: see batch.h.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/checkpoint_files.h"
#include "client/commands/commands.h"
#include "client/commands/follow.h"
#include "client/commands/local_run.h"
#include "client/launch/batch.h"
#include "client/launch/launched_cluster.h"
#include "client/launch/launchers.h"
#include "client/launch/node.h"
#include "client/launch/scheduler.h"
#include "client/run_folder.h"
#include "client/text/log_text.h"
#include "services/process/process.h"
#include "services/server/signals.h"
#include "training/codec/strict_json.h"
#include "training/spec/resolve.h"

namespace capstan::client {
namespace {

struct LaunchFlags {
  JobSource source;
  std::optional<int> workers;
  std::optional<int> shards;
  std::string launcher = "local";
  std::string hosts;
  LaunchOptions options;
};

// Refuses flags that belong to another launcher.
absl::Status CheckLauncherFlags(const LaunchFlags& flags) {
  const LaunchOptions& options = flags.options;
  const Launcher launcher = options.launcher;
  const bool queue = launcher == Launcher::kSge || launcher == Launcher::kYarn;
  const auto refuse = [&](const char* flag) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " would do nothing with --launcher ", flags.launcher));
  };
  if (!options.shared_dir.empty() && !queue) return refuse("--shared-dir");
  if (!options.resource_manager.empty() && launcher != Launcher::kYarn) {
    return refuse("--resource-manager");
  }
  if (!options.launcher_args.empty() &&
      (launcher == Launcher::kLocal || launcher == Launcher::kSsh)) {
    return refuse("--launcher-arg");
  }
  if (!options.ssh.empty() && launcher != Launcher::kSsh && launcher != Launcher::kMpi &&
      options.sync_dst_dir.empty()) {
    return refuse("--ssh");
  }
  return absl::OkStatus();
}

// Fills in and checks the flags before anything is started.
absl::Status Complete(LaunchFlags& flags) {
  LaunchOptions& options = flags.options;
  const std::vector<std::string>& names = LauncherNames();
  options.launcher =
      static_cast<Launcher>(std::find(names.begin(), names.end(), flags.launcher) - names.begin());
  if (absl::Status status = CheckLauncherFlags(flags); !status.ok()) return status;
  if (!flags.hosts.empty()) {
    absl::StatusOr<std::vector<std::string>> hosts = ReadHosts(flags.hosts);
    if (!hosts.ok()) return hosts.status();
    options.hosts = *std::move(hosts);
  }
  if (options.launcher == Launcher::kLocal && !options.hosts.empty()) {
    return absl::InvalidArgumentError("-H does not go with --launcher local");
  }
  if (options.launcher == Launcher::kSsh && options.hosts.empty()) {
    return absl::InvalidArgumentError("--launcher ssh needs -H: a list of hosts or a file");
  }
  if (!options.sync_dst_dir.empty() && (options.hosts.empty() || options.sync_dst_dir[0] != '/')) {
    return absl::InvalidArgumentError(absl::StrCat("--sync-dst-dir: got '", options.sync_dst_dir,
                                                   "', want an absolute folder, with -H"));
  }
  for (const std::string& host : options.hosts) {
    if (options.launcher != Launcher::kSsh && !SplitPort(host).port.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("-H: got '", host, "': only --launcher ssh takes a port"));
    }
  }
  absl::StatusOr<std::vector<std::string>> env = ReadEnv(options.env);
  if (!env.ok()) return env.status();
  options.env = *std::move(env);
  if (options.launcher == Launcher::kYarn) {
    if (!options.hosts.empty()) {
      return absl::InvalidArgumentError("-H does not go with --launcher yarn, which chooses them");
    }
    const auto manager = ResourceManagerEndpoint(options.resource_manager);
    if (!manager.ok()) return manager.status();
  }
  std::error_code error;
  const std::filesystem::path shared =
      std::filesystem::absolute(options.shared_dir.empty() ? "." : options.shared_dir, error);
  options.shared_dir = shared.lexically_normal().string();
  if (!training::IsUtf8(options.shared_dir)) {
    return absl::InvalidArgumentError("--shared-dir: the path is not UTF-8");
  }
  while (options.shared_dir.size() > 1 && options.shared_dir.back() == '/') {
    options.shared_dir.pop_back();
  }
  if (options.program.empty()) {
    absl::StatusOr<std::string> self = services::SiblingBinary("capstan");
    if (!self.ok()) return self.status();
    options.program = *std::move(self);
  }
  return absl::OkStatus();
}

// Copies the working directory to the hosts, and makes the job's paths in that directory refer to
// the copy.
absl::Status Sync(const LaunchOptions& options, job::v1::JobSpec& spec) {
  if (options.sync_dst_dir.empty()) return absl::OkStatus();
  for (const std::string& command : SyncCommands(options)) {
    services::ProcessSpawner spawner;
    absl::StatusOr<std::unique_ptr<services::Process>> process =
        spawner.Spawn({.binary = "/bin/sh",
                       .args = {"-c", command},
                       .env = {},
                       .on_line = nullptr,
                       .on_exit = nullptr});
    if (!process.ok()) return process.status();
    while (true) {
      if (const auto ended = (*process)->WaitFor(absl::Milliseconds(100))) {
        if (ended->success()) break;
        return absl::InternalError(
            absl::StrCat("--sync-dst-dir: ", command, ": ", ended->ToString()));
      }
      if (services::ShutdownSignal::Install().WaitFor(absl::ZeroDuration())) {
        return absl::CancelledError();
      }
    }
  }
  std::error_code error;
  const std::string here = std::filesystem::current_path(error).string();
  const auto move = [&](const std::string& uri) {
    absl::string_view rest = uri;
    const bool has_scheme = absl::ConsumePrefix(&rest, "file://");
    if (!absl::ConsumePrefix(&rest, here) || !(rest.empty() || rest[0] == '/')) return uri;
    return absl::StrCat(has_scheme ? "file://" : "", options.sync_dst_dir, rest);
  };
  if (spec.data().has_uri()) spec.mutable_data()->set_uri(move(spec.data().uri()));
  if (spec.model().has_initial_weights()) {
    spec.mutable_model()->set_initial_weights(move(spec.model().initial_weights()));
  }
  return absl::OkStatus();
}

// Blocks until the job has ended. The first SIGINT or SIGTERM cancels the job, the second ends
// everything at once.
ExitCode Launch(LaunchFlags flags, const Console& console) {
  if (const ExitCode code = NeedSource(flags.source, console); code != kExitDone) return code;
  services::ShutdownSignal& signal = services::ShutdownSignal::Install();
  if (absl::Status status = Complete(flags); !status.ok()) {
    Report(status, console);
    return kExitUsage;
  }
  std::vector<std::string>& sets = flags.source.sets;
  if (flags.workers) sets.push_back(absl::StrCat("resources.num_workers=", *flags.workers));
  if (flags.shards) sets.push_back(absl::StrCat("resources.num_shards=", *flags.shards));
  JobPlaces places;
  absl::StatusOr<job::v1::JobSpec> spec = LoadJob(flags.source, console, places);
  if (!spec.ok()) return Report(spec.status(), console);
  if (absl::Status status = CheckNoCheckpointName(*spec); !status.ok()) {
    return Report(status, console);
  }
  const absl::StatusOr<job::v1::ResolvedSpec> plan = ResolveHere(*spec);
  if (!plan.ok()) {
    console.Err(ErrorLine(places, plan.status().message()));
    return kExitUsage;
  }
  console.Note(training::spec::PlanText(*plan));
  const bool given = spec->checkpoint().has_storage_path();
  if (absl::Status status = PrepareStorage(*spec, *plan, console); !status.ok()) {
    return ReportStorage(status, given, places, console);
  }
  // No call failed here, so the exit code does not depend on the status code of one.
  const auto failed = [&console](const absl::Status& status) {
    if (absl::IsCancelled(status)) return kExitInterrupted;
    console.Err(absl::StrCat("capstan: ", status.message(), "\n"));
    return absl::IsInvalidArgument(status) ? kExitUsage : kExitInternal;
  };
  if (absl::Status status = Sync(flags.options, *spec); !status.ok()) return failed(status);
  if (signal.WaitFor(absl::ZeroDuration())) return kExitInterrupted;

  const absl::StatusOr<RunPlace> place = MakeRunPlace(*spec, console);
  if (!place.ok()) return ReportStorage(place.status(), given, places, console);
  flags.options.job_id = place->job_id;
  flags.options.state_dir = place->state_dir;
  // Runs after the services have ended, which write into the folder. A launch without a job leaves
  // none.
  absl::Cleanup remove = [&place] { RemoveRunPlace(*place); };

  // The services print lines too, so nothing is redrawn in place.
  Console lines = console;
  lines.one_terminal = false;
  const absl::StatusOr<std::unique_ptr<LaunchedCluster>> cluster =
      LaunchedCluster::Start(flags.options, {plan->num_shards(), plan->num_workers()},
                             [&lines](absl::string_view who, absl::string_view line) {
                               if (!lines.verbose && IsChatter(line)) return;
                               lines.Note(absl::StrCat("[", who, "] ", line, "\n"));
                             });
  if (!cluster.ok()) return failed(cluster.status());
  const absl::StatusOr<std::unique_ptr<JobClient>> client =
      JobClient::Connect((*cluster)->connection());
  if (!client.ok()) return failed(client.status());
  job::v1::SubmitJobRequest request;
  request.set_request_id(NewRequestId());
  *request.mutable_spec() = *spec;
  const auto answer = (*client)->Call(&JobClient::Stub::SubmitJob, request);
  if (!answer.ok()) return Report(answer.status(), console);
  std::move(remove).Cancel();
  lines.Note(absl::StrCat(answer->job_id(), "\n"));
  FollowOptions follow;
  follow.show = FollowOptions::Show::kEpochs;
  follow.cancel_on_signal = true;
  follow.health = [&cluster] { return (*cluster)->Health(); };
  const Followed followed = Follow(**client, answer->job_id(), follow, lines);
  const ExitCode code = ReportOwnJob(**client, answer->job_id(), followed, console);
  if (!place->state_dir.empty()) SayHowToGoOn(RunName(place->folder), followed, lines);
  return code;
}

}  // namespace

void AddLaunch(Command parent, Action& slot) {
  const auto flags = std::make_shared<LaunchFlags>();
  LaunchOptions& options = flags->options;
  Command launch =
      parent.Sub("launch", "train a job on services that a launcher starts, here or on many hosts");
  AddJobSource(launch, flags->source);
  launch.Add("-n,--num-workers", flags->workers, "instead of resources.num_workers");
  launch.Add("-s,--num-shards,--num-servers", flags->shards, "instead of resources.num_shards");
  launch.Add("--launcher", flags->launcher, absl::StrJoin(LauncherNames(), " | "))
      .OneOf(LauncherNames());
  launch.Add("-H,--hostfile", flags->hosts,
             "comma-separated hosts, or a file; for ssh also HOST:PORT");
  launch.Add("--interface", options.interface,
             "network interface of the hosts, default the one that routes between them");
  launch.Add("--sync-dst-dir", options.sync_dst_dir,
             "copy the working directory to this folder of each host (ssh and tar)");
  launch.AddRepeated("--env", options.env, "",
                     "NAME=VALUE for every service, or NAME with the value that it has here");
  launch.AddRepeated("--launcher-arg", options.launcher_args, "",
                     "another argument for mpirun, srun, qsub or YARN's distributed shell");
  launch.Add("--shared-dir", options.shared_dir,
             "for sge and yarn: a folder that all hosts share, default the working directory");
  launch.Add("--resource-manager", options.resource_manager,
             "for yarn: http://HOST:PORT of its REST interface");
  launch.Add("--ssh", options.ssh, "the ssh to use, with its flags");
  launch.Add("--program", options.program, "the path of capstan on the hosts, default ours");
  CarryOut(launch, slot, {Output::kTable, Output::kJson},
           [flags](const Context& context) { return Launch(*flags, context.console); },
           {.coordinator = false, .timeout = false, .verbose = true});

  const auto node = std::make_shared<NodeOptions>();
  Command run = parent.Sub("launch-node", "");
  run.Hide();  // not for people; `launch` runs it
  run.Add("--by", node->by).Required().OneOf({"stdin", "variable", "folder", "address"});
  run.Add("--folder", node->folder);
  run.Add("--rank", node->rank);
  run.Add("--coordinator", node->coordinator);
  run.Add("--interface", node->interface);
  CarryOut(run, slot, {Output::kTable}, [node](const Context&) { return RunNode(*node); });

  const auto batch = std::make_shared<BatchOptions>();
  Command submit = parent.Sub("launch-batch", "");
  submit.Hide();
  submit.Add("--ranks", batch->ranks).Required();
  submit.Add("--shared-dir", batch->shared_dir).Required();
  submit.Add("--folder", batch->folder);
  submit.Add("--resource-manager", batch->resource_manager);
  submit.AddRepeated("--host", batch->hosts, "", "");
  submit.AddRepeated("--launcher-arg", batch->args, "", "");
  submit.Add("node", batch->node).Required();
  CarryOut(submit, slot, {Output::kTable}, [batch](const Context&) { return RunBatch(*batch); });
}

}  // namespace capstan::client
