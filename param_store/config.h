// The settings of capstan_param_store.
#ifndef CAPSTAN_PARAM_STORE_CONFIG_H_
#define CAPSTAN_PARAM_STORE_CONFIG_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/endpoint/endpoint.h"
#include "services/flags/flags.h"

namespace capstan::param_store {

struct Config {
  services::CommonFlags common;  // --listen 127.0.0.1:7080 --http 127.0.0.1:7081 ...
  std::string coordinator;       // --coordinator: unix:PATH or ADDR:PORT; required
  std::string node;              // --node: [a-z0-9-]{1,63}, unique in the cluster; required
  // --checkpoint-root, --data-root: folders that a job's files and initial weights may lie in.
  // Default: anywhere.
  std::vector<std::string> checkpoint_roots;
  std::vector<std::string> data_roots;
  // --no-shared-memory: streams of workers and shards on this host stay on gRPC.
  bool no_shared_memory = false;
  // --hand-over: from SIGTERM until it goes with jobs that nobody has taken. 0: at once.
  absl::Duration hand_over = absl::Seconds(60);

  // Read by Check from the flags above.
  services::Endpoint listen;
  std::optional<services::Endpoint> http;
  services::Endpoint coordinator_endpoint;

  // nullopt: go on. Otherwise the exit code; what is wrong was said on standard error.
  std::optional<int> Parse(int argc, const char* const* argv);
  // InvalidArgument, naming the flag, got and want.
  absl::Status Check();
};

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_CONFIG_H_
