#include "gpu_worker/task/task_main.h"

#include <atomic>
#include <cstdio>
#include <memory>
#include <new>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "capstan/node/v1/node.pb.h"
#include "gpu_worker/task/task.h"
#include "gpu_worker/task/task_link.h"
#include "services/flags/flags.h"
#include "services/logging/log.h"
#include "services/process/process.h"
#include "services/server/signals.h"
#include "services/strand/strand.h"
#include "services/tuning/tuning.h"
#include "services/version/version.h"

namespace capstan::gpu_worker {

using services::Log;

namespace {

// Two builds with the same string are the same build.
std::string ThisBuild() { return absl::StrCat(Version(), "+", Revision()); }

}  // namespace

std::vector<std::string> TaskArguments(const TaskProcessOptions& options) {
  std::vector<std::string> args = {
      "task",           "--fd",          absl::StrCat(options.fd),          "--service-version",
      ThisBuild(),      "--cpu-threads", absl::StrCat(options.cpu_threads), "--log-level",
      options.log_level};
  for (const std::string& device : options.devices) {
    args.push_back("--devices");
    args.push_back(device);
  }
  for (const std::string& root : options.data_roots) {
    args.push_back("--data-root");
    args.push_back(root);
  }
  for (const std::string& root : options.checkpoint_roots) {
    args.push_back("--checkpoint-root");
    args.push_back(root);
  }
  if (!options.coordinator.empty()) {
    args.push_back("--coordinator");
    args.push_back(options.coordinator);
  }
  if (options.security.insecure) args.push_back("--insecure");
  const std::pair<const char*, const std::string&> files[] = {
      {"--tls-cert", options.security.tls_cert},
      {"--tls-key", options.security.tls_key},
      {"--tls-ca", options.security.tls_ca},
      {"--token-file", options.security.token_file}};
  for (const auto& [flag, path] : files) {  // only the paths, never secrets themselves
    if (path.empty()) continue;
    args.push_back(flag);
    args.push_back(path);
  }
  return args;
}

int TaskMain(int argc, const char* const* argv) {
  if (absl::Status status = services::ArmParentDeathSignalFromEnvironment(); !status.ok()) {
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    return 1;
  }
  services::TuneProcess();
  TaskProcessOptions options;
  int64_t fd = options.fd;
  std::string service_version;
  int64_t threads = 0;
  services::FlagSet flags("capstan_gpu_worker task",
                          "Trains one job; started by the worker service only.");
  flags.AddInt("fd", fd, "descriptor", "socket to the service", 3, 1 << 20);
  flags.AddString("service-version", service_version, "VERSION", "of the service, with revision");
  flags.AddInt("cpu-threads", threads, "threads",
               "threads of all CPU devices together; 0: one for each core", 0, 4096);
  flags.AddList("devices", options.devices, "NAME", "devices of the task");
  flags.AddList("data-root", options.data_roots, "FOLDER", "folders that may hold data");
  flags.AddList("checkpoint-root", options.checkpoint_roots, "FOLDER",
                "folders that may hold checkpoints");
  flags.AddString("coordinator", options.coordinator, "ADDR",
                  "takes the files that are not in a shared folder");
  flags.AddBool("insecure", options.security.insecure, "plaintext TCP is allowed");
  flags.AddString("tls-cert", options.security.tls_cert, "FILE", "certificate, PEM");
  flags.AddString("tls-key", options.security.tls_key, "FILE", "its key, PEM");
  flags.AddString("tls-ca", options.security.tls_ca, "FILE", "authorities of the shards, PEM");
  flags.AddString("token-file", options.security.token_file, "FILE", "token for the shards");
  flags.AddString("log-level", options.log_level, "LEVEL", "debug, info, warning or error");
  if (const std::optional<int> code = flags.Parse(argc - 1, argv + 1)) return *code;
  if (service_version != ThisBuild()) {
    std::fprintf(
        stderr,
        "capstan_gpu_worker task: this binary is of version %s, the service that starts it "
        "of %s: restart the service, capstan_gpu_worker\n",
        ThisBuild().c_str(), service_version.empty() ? "an earlier one" : service_version.c_str());
    return 2;
  }
  if (options.devices.empty()) {
    std::fprintf(stderr, "capstan_gpu_worker task: --devices is empty\n");
    return 2;
  }
  if (auto level = services::ParseLogLevel(options.log_level); level.ok()) {
    services::SetLogLevel(*level);
  }
  services::ShutdownSignal& signal = services::ShutdownSignal::Install();

  services::StrandLoop strand;
  std::atomic<bool> failed{false};
  std::unique_ptr<TaskLink> link;
  TaskOptions task_options;
  task_options.devices = options.devices;
  task_options.cpu_threads = static_cast<int>(threads);
  task_options.security = options.security;
  task_options.data_roots = options.data_roots;
  task_options.checkpoint_roots = options.checkpoint_roots;
  task_options.coordinator = options.coordinator;
  Task::Callbacks callbacks;
  callbacks.on_state = [&link](const node::v1::TaskState& state) {
    // A stalled service misses states and receives a later one. The last state has no successor.
    const std::string bytes = state.SerializeAsString();
    const bool last = state.phase() == node::v1::TASK_PHASE_FAILED;
    (last ? link->Send(LinkKind::kTaskState, bytes) : link->Offer(LinkKind::kTaskState, bytes))
        .IgnoreError();
  };
  callbacks.on_counters = [&link](const TaskCounters& counters) {
    link->Offer(LinkKind::kCounters, EncodeCounters(counters)).IgnoreError();
  };
  callbacks.on_exit = [&](bool has_failed) {
    failed.store(has_failed);
    strand.Stop();
  };
  auto task = std::make_unique<Task>(task_options, strand, std::move(callbacks));
  link = std::make_unique<TaskLink>(
      static_cast<int>(fd),
      [&](LinkKind kind, absl::string_view body) {
        const std::string bytes(body);
        if (kind == LinkKind::kStartTask) {
          strand.Post([&task, bytes] {
            node::v1::StartTask start;
            if (start.ParseFromString(bytes)) task->Start(start);
          });
        } else if (kind == LinkKind::kViewChange) {
          strand.Post([&task, bytes] {
            node::v1::ViewChange change;
            if (!change.ParseFromString(bytes)) return;
            task->SetFilesKey(change.files_key());
            task->ChangeView(change.view(), change.base_manifest());
          });
        } else if (kind == LinkKind::kFilesTaken) {
          strand.Post([&task, bytes] {
            node::v1::FilesTaken taken;
            if (taken.ParseFromString(bytes)) task->FilesTaken(taken);
          });
        } else if (kind == LinkKind::kGiveOrders) {
          strand.Post([&task, bytes] {
            node::v1::GiveOrders give;
            if (give.ParseFromString(bytes)) task->GiveOrders(give);
          });
        } else if (kind == LinkKind::kCoordinator) {
          strand.Post([&task, up = bytes == std::string(1, '\1')] { task->SetCoordinatorUp(up); });
        } else if (kind == LinkKind::kStop) {
          strand.Post([&task] { task->Stop(); });
        }
      },
      [&] {
        Log(services::kWarning, "service_gone");
        strand.Post([&task] { task->Stop(); });
      });
  std::atomic<bool> over{false};
  std::thread watcher([&] {
    while (!over.load()) {
      if (!signal.WaitFor(absl::Milliseconds(100))) continue;
      strand.Post([&task] { task->Stop(); });
      return;
    }
  });
  try {
    strand.Run();
  } catch (const std::bad_alloc&) {
    node::v1::TaskState state;
    state.set_phase(node::v1::TASK_PHASE_FAILED);
    state.set_reason("HostOutOfMemory");
    state.set_message("the task's memory cannot be allocated");
    link->Send(LinkKind::kTaskState, state.SerializeAsString()).IgnoreError();
    failed.store(true);
    strand.Stop();
  }
  over.store(true);
  watcher.join();
  task.reset();
  link.reset();
  return failed.load() ? 1 : 0;
}

}  // namespace capstan::gpu_worker
