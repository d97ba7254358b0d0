// The settings of the worker service.
#ifndef CAPSTAN_GPU_WORKER_CONFIG_H_
#define CAPSTAN_GPU_WORKER_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/flags/flags.h"

namespace capstan::gpu_worker {

struct Config {
  services::CommonFlags common;
  std::string coordinator;  // --coordinator: unix:PATH or HOST:PORT
  std::string node;         // --node: [a-z0-9-]{1,63}
  // --devices: one slot each. "auto" alone means every GPU, and the CPUs.
  std::vector<std::string> devices = {"auto"};
  int64_t cpu_threads = 0;              // --cpu-threads of a task, 0..4096; 0: as many as cores
  std::vector<std::string> data_roots;  // --data-root; empty: anywhere
  std::vector<std::string> checkpoint_roots;  // --checkpoint-root; empty: anywhere

  void AddTo(services::FlagSet& flags) {
    flags.AddCommon(common, "127.0.0.1:7090", "127.0.0.1:7091");
    flags.AddAdminSocket(common);
    flags.AddString("coordinator", coordinator, "ADDR", "address of the coordinator");
    flags.AddString("node", node, "NAME", "name of this node, unique in the cluster");
    flags.AddList("devices", devices, "NAME",
                  "one slot each: cpu,cpu or cuda:0,...; auto: each GPU and one cpu");
    flags.AddInt("cpu-threads", cpu_threads, "threads",
                 "threads of all CPU devices of a task together; 0: one for each core", 0, 4096);
    flags.AddList("data-root", data_roots, "FOLDER",
                  "folders that may hold data sets; default: any folder");
    flags.AddList("checkpoint-root", checkpoint_roots, "FOLDER",
                  "folders that may hold checkpoints; default: any folder");
  }

  // InvalidArgument, with the flag: a setting is missing or malformed.
  absl::Status Check() const {
    if (coordinator.empty()) return absl::InvalidArgumentError("--coordinator is not given");
    bool good = !node.empty() && node.size() <= 63;
    for (const char c : node) {
      good = good && ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-');
    }
    if (!good) {
      return absl::InvalidArgumentError(
          absl::StrCat("--node is '", node, "', want 1 to 63 of a-z, 0-9 and -"));
    }
    if (devices.empty()) return absl::InvalidArgumentError("--devices is empty");
    return absl::OkStatus();
  }
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_CONFIG_H_
