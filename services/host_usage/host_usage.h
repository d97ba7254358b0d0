// Usage of this host's processors and memory, from /proc, for heartbeats.
#ifndef CAPSTAN_SERVICES_HOST_USAGE_HOST_USAGE_H_
#define CAPSTAN_SERVICES_HOST_USAGE_HOST_USAGE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "capstan/common/v1/common.pb.h"

namespace capstan::services {

// Not thread-safe. Reads at most once a second, because heartbeats may come more often.
class HostUsage {
 public:
  explicit HostUsage(std::string proc = "/proc") : proc_(std::move(proc)) {}

  // Sets the fields that can be read and leaves the rest of `usage` unchanged. `now` is a monotonic
  // time; the overload without it uses the host's clock.
  void Fill(common::v1::NodeUsage* usage);
  void Fill(absl::Duration now, common::v1::NodeUsage* usage);

 private:
  void Read();

  const std::string proc_;
  absl::Duration read_at_ = -absl::InfiniteDuration();
  common::v1::NodeUsage last_;
  int64_t busy_ = -1;  // ticks of all cores since the host's start; -1: not read yet
  int64_t ticks_ = 0;
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_HOST_USAGE_HOST_USAGE_H_
