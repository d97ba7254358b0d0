#include "param_store/config.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "training/codec/local_uri.h"

namespace capstan::param_store {

std::optional<int> Config::Parse(int argc, const char* const* argv) {
  services::FlagSet flags("capstan_param_store",
                          "Holds a shard of the weights of training jobs and updates them.");
  flags.AddCommon(common, "127.0.0.1:7080", "127.0.0.1:7081");
  flags.AddAdvertise(common);
  flags.AddAdminSocket(common);
  flags.AddString("coordinator", coordinator, "ADDR:PORT|unix:PATH",
                  "address of the coordinator (required)");
  flags.AddString("node", node, "NAME", "the name of this node in the cluster (required)");
  flags.AddList("checkpoint-root", checkpoint_roots, "FOLDER",
                "folders that jobs may write to; default: any folder");
  flags.AddList("data-root", data_roots, "FOLDER",
                "folders that may hold initial weights; default: any folder");
  flags.AddBool("no-shared-memory", no_shared_memory,
                "use gRPC, not shared memory, with workers and shards of this host, too");
  flags.AddDuration("hand-over", hand_over,
                    "how long a shard that is told to stop may take to hand over its jobs; 0s: it "
                    "stops at once, and they go back to their last checkpoints",
                    absl::ZeroDuration(), absl::Hours(1));
  if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return exit_code;
  const absl::Status status = Check();
  if (status.ok()) return std::nullopt;
  std::fprintf(stderr, "capstan_param_store: %s\n", std::string(status.message()).c_str());
  return 2;
}

absl::Status Config::Check() {
  const bool good_name =
      !node.empty() && node.size() <= 63 && std::all_of(node.begin(), node.end(), [](char c) {
        return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
      });
  if (!good_name) {
    return absl::InvalidArgumentError(
        absl::StrCat("--node: got '", node, "', want 1 to 63 of a-z, 0-9 and -"));
  }
  for (const auto& [flag, roots] :
       {std::pair{"--checkpoint-root", &checkpoint_roots}, std::pair{"--data-root", &data_roots}}) {
    for (std::string& root : *roots) {
      const auto path = training::LocalPath(root);
      if (!path.ok() || path->empty() || (*path)[0] != '/') {
        return absl::InvalidArgumentError(
            absl::StrCat(flag, ": want an absolute folder, got '", root, "'"));
      }
      root = *path;
    }
  }
  auto endpoint = services::ParseEndpoint(coordinator);
  if (!endpoint.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--coordinator: ", endpoint.status().message()));
  }
  coordinator_endpoint = *std::move(endpoint);
  if (absl::Status s = services::CheckConnectSecurity(coordinator_endpoint, common.security);
      !s.ok()) {
    return s;
  }
  auto resolved = common.Apply();
  if (!resolved.ok()) return resolved.status();
  listen = resolved->listen;
  http = resolved->http;
  return absl::OkStatus();
}

}  // namespace capstan::param_store
