// capstan_gpu_worker: the worker service of a host. With `task` as the first argument it is the
// child process of one task.
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

#include "gpu_worker/config.h"
#include "gpu_worker/service/service.h"
#include "gpu_worker/task/task_main.h"
#include "services/flags/flags.h"
#include "services/process/process.h"
#include "services/server/signals.h"
#include "services/tuning/tuning.h"

int main(int argc, char** argv) {
  namespace services = capstan::services;
  if (argc > 1 && std::strcmp(argv[1], "task") == 0) {
    return capstan::gpu_worker::TaskMain(argc, argv);
  }
  services::TuneProcess();
  services::RequireThreads();
  // If `capstan run` is the parent, this process ends with it.
  if (const absl::Status s = services::ArmParentDeathSignalFromEnvironment(); !s.ok()) {
    std::fprintf(stderr, "capstan_gpu_worker: %s\n", std::string(s.message()).c_str());
    return 1;
  }
  services::ShutdownSignal& signal = services::ShutdownSignal::Install();
  capstan::gpu_worker::Config config;
  services::FlagSet flags("capstan_gpu_worker", "Trains jobs on the devices of this host.");
  config.AddTo(flags);
  if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
  if (const absl::Status s = config.Check(); !s.ok()) {
    std::fprintf(stderr, "capstan_gpu_worker: %s\n", std::string(s.message()).c_str());
    return 2;
  }
  // Started under its name, so that people find the tasks.
  const std::string binary =
      services::SiblingBinary("capstan_gpu_worker").value_or("/proc/self/exe");
  auto service = capstan::gpu_worker::Service::Start(config, binary);
  if (!service.ok()) {
    std::fprintf(stderr, "capstan_gpu_worker: %s\n",
                 std::string(service.status().message()).c_str());
    return absl::IsInvalidArgument(service.status()) ? 2 : 1;
  }
  std::printf("event=listening %s\n", (*service)->Addresses().c_str());
  std::fflush(stdout);
  signal.Wait();
  capstan::services::EndProcessAfter(capstan::services::kShutdownLimit);
  (*service)->Shutdown();
  return 0;
}
