#include "coordinator/core/restarts.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace capstan::coordinator::core {
namespace {

constexpr int32_t kDefaultMaxRestarts = 3;
constexpr double kDefaultBackoffSeconds = 1;
constexpr double kDefaultMaxBackoffSeconds = 300;

}  // namespace

absl::Duration BackoffOf(const job::v1::Recovery& recovery, int restarts) {
  const double initial = recovery.has_backoff_initial_seconds() ? recovery.backoff_initial_seconds()
                                                                : kDefaultBackoffSeconds;
  const double most =
      std::max(initial, recovery.has_backoff_max_seconds() ? recovery.backoff_max_seconds()
                                                           : kDefaultMaxBackoffSeconds);
  return absl::Seconds(std::min(most, std::ldexp(initial, std::min(restarts, 40))));
}

bool NeverRetried(const job::v1::Recovery& recovery, const std::string& reason) {
  static constexpr const char* kDefault[] = {"InvalidSpec", "GpuOutOfMemory", "NonFiniteLoss",
                                             "DataMissing"};
  const auto& list = recovery.never_retry_on();
  if (list.empty()) {
    return std::find(std::begin(kDefault), std::end(kDefault), reason) != std::end(kDefault);
  }
  return std::find(list.begin(), list.end(), reason) != list.end();
}

int32_t Restarts::LimitOf(const job::v1::Recovery& recovery) const {
  if (limit_.has_value()) return *limit_;
  return recovery.has_max_restarts() ? recovery.max_restarts() : kDefaultMaxRestarts;
}

void Restarts::Count(const std::string& reason, int64_t step) {
  ++count_;
  reason_ = reason;
  step_ = std::max(step_, step);
  ran_since_ = absl::InfiniteDuration();
}

void Restarts::Clear() {
  count_ = 0;
  step_ = 0;
}

bool Restarts::Forgivable(bool runs, int64_t step, absl::Duration now, absl::Duration after) {
  const bool beyond = runs && step > step_;
  ran_since_ = beyond ? std::min(ran_since_, now) : absl::InfiniteDuration();
  return count_ > 0 && beyond && now - ran_since_ >= after;
}

void Restarts::Load(int32_t count, int64_t step, std::optional<int32_t> limit) {
  count_ = count;
  step_ = step;
  limit_ = limit;
}

}  // namespace capstan::coordinator::core
