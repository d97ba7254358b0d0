// capstan_coordinator: see --help.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "coordinator/config.h"
#include "coordinator/server.h"
#include "services/logging/log.h"
#include "services/process/process.h"
#include "services/server/signals.h"
#include "services/tuning/tuning.h"

int main(int argc, char** argv) {
  using capstan::coordinator::CoordinatorServer;
  using capstan::services::Log;
  capstan::services::TuneProcess();
  capstan::services::RequireThreads();
  // If `capstan run` is the parent, this process ends with it.
  const absl::Status parent = capstan::services::ArmParentDeathSignalFromEnvironment();
  if (!parent.ok()) return 1;

  capstan::coordinator::Config config;
  if (const std::optional<int> code = capstan::coordinator::ParseConfig(argc, argv, config)) {
    return *code;
  }
  const absl::Status usable = capstan::coordinator::CheckConfig(config);
  if (!usable.ok()) {
    std::fprintf(stderr, "capstan_coordinator: %s\n", std::string(usable.message()).c_str());
    return 2;
  }
  capstan::services::ShutdownSignal& signal = capstan::services::ShutdownSignal::Install();
  // Ends at once: what could not be made durable must not be shown to anybody.
  auto server = CoordinatorServer::Start(config, [] { std::_Exit(1); });
  if (!server.ok()) {
    std::fprintf(stderr, "capstan_coordinator: %s\n",
                 std::string(server.status().message()).c_str());
    return absl::IsInvalidArgument(server.status()) ? 2 : 1;
  }
  std::printf("event=listening grpc=%s http=%s\n", (*server)->grpc_endpoint().ToString().c_str(),
              (*server)->http_endpoint().c_str());
  std::fflush(stdout);
  signal.Wait();
  capstan::services::EndProcessAfter(absl::Seconds(30));
  if (!(*server)->Shutdown()) {
    // Everything durable is on the state disk, which did answer; the hung disks are left.
    Log(capstan::services::kWarning, "disk_does_not_answer").Kv("left", "work on files");
    std::_Exit(0);
  }
  return 0;
}
