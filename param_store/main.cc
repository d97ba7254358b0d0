// capstan_param_store: one shard service. Flags: config.h; --help prints them.
#include <cstdio>
#include <string>

#include "param_store/config.h"
#include "param_store/service.h"
#include "services/process/process.h"
#include "services/server/signals.h"
#include "services/tuning/tuning.h"

int main(int argc, char** argv) {
  using capstan::param_store::Config;
  using capstan::param_store::Service;
  if (const absl::Status s = capstan::services::ArmParentDeathSignalFromEnvironment(); !s.ok()) {
    std::fprintf(stderr, "capstan_param_store: %s\n", std::string(s.message()).c_str());
    return 1;
  }
  capstan::services::TuneProcess();
  capstan::services::RequireThreads();
  capstan::services::ShutdownSignal& signal = capstan::services::ShutdownSignal::Install();
  Config config;
  if (const std::optional<int> exit_code = config.Parse(argc, argv)) return *exit_code;
  auto service = Service::Start(config);
  if (!service.ok()) {
    std::fprintf(stderr, "capstan_param_store: %s\n", service.status().ToString().c_str());
    return 1;
  }
  std::printf("event=listening %s\n", (*service)->Addresses().c_str());
  std::fflush(stdout);
  signal.Wait();
  (*service)->HandOver(config.hand_over);
  capstan::services::EndProcessAfter(capstan::services::kShutdownLimit);
  (*service)->Shutdown();
  return 0;
}
