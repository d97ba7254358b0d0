#include "gpu_worker/task/counters.h"

#include <algorithm>
#include <cstring>

namespace capstan::gpu_worker {
namespace {

// Calls `field` for every number, in the order of the wire.
template <typename Counters, typename Field>
void ForEach(Counters& c, Field field) {
  field(c.steps);
  field(c.samples);
  for (auto* histogram : {&c.step_seconds, &c.barrier_seconds}) {
    for (auto& bucket : histogram->buckets) field(bucket);
    field(histogram->sum);
  }
  field(c.exchange.sent_wire_bytes);
  field(c.exchange.sent_payload_bytes);
  field(c.exchange.received_wire_bytes);
  field(c.exchange.received_payload_bytes);
  field(c.exchange.copied_bytes);
  field(c.exchange.retries);
  field(c.exchange.corrupt_frames);
  field(c.exchange.push_seconds);
  field(c.exchange.pull_seconds);
}

constexpr size_t kMaxBuckets = 1000;

}  // namespace

void SecondsHistogram::Observe(double seconds, const std::vector<double>& bounds) {
  buckets.resize(bounds.size() + 1);
  // prometheus: a bucket holds what is at most its bound.
  const auto it = std::lower_bound(bounds.begin(), bounds.end(), seconds);
  ++buckets[it - bounds.begin()];
  sum += seconds;
}

std::string EncodeCounters(const TaskCounters& counters) {
  std::string out;
  const auto append = [&out](const auto& value) {
    static_assert(sizeof(value) == 8);
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  append(static_cast<int64_t>(counters.step_seconds.buckets.size()));
  append(static_cast<int64_t>(counters.barrier_seconds.buckets.size()));
  ForEach(counters, append);
  return out;
}

absl::StatusOr<TaskCounters> DecodeCounters(absl::string_view bytes) {
  bool ok = true;
  const auto take = [&](auto& value) {
    ok = ok && bytes.size() >= sizeof(value);
    if (!ok) return;
    std::memcpy(&value, bytes.data(), sizeof(value));
    bytes.remove_prefix(sizeof(value));
  };
  TaskCounters counters;
  for (SecondsHistogram* histogram : {&counters.step_seconds, &counters.barrier_seconds}) {
    int64_t size = 0;
    take(size);
    ok = ok && size >= 0 && size <= static_cast<int64_t>(kMaxBuckets);
    if (ok) histogram->buckets.resize(size);
  }
  if (ok) ForEach(counters, take);
  if (!ok || !bytes.empty()) return absl::InvalidArgumentError("counters of another length");
  return counters;
}

}  // namespace capstan::gpu_worker
