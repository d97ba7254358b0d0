#include "gpu_worker/task/counters.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace capstan::gpu_worker {
namespace {

template <typename Counters>
auto Histograms(Counters& c) {
  return std::array{&c.step_seconds, &c.barrier_seconds, &c.push_seconds, &c.pull_seconds,
                    &c.reduce_seconds};
}

// Calls `field` for every number, in wire order.
template <typename Counters, typename Field>
void ForEach(Counters& c, Field field) {
  field(c.steps);
  field(c.samples);
  for (auto* histogram : Histograms(c)) {
    for (auto& bucket : histogram->buckets) field(bucket);
    field(histogram->sum);
  }
  field(c.reduce_bytes);
  field(c.read_bytes);
  field(c.queued_batches);
  field(c.cpu_seconds);
  field(c.resident_bytes);
  for (auto& bytes : c.planned_bytes) field(bytes);
  field(c.exchange.sent_wire_bytes);
  field(c.exchange.sent_payload_bytes);
  field(c.exchange.received_wire_bytes);
  field(c.exchange.received_payload_bytes);
  field(c.exchange.copied_bytes);
  field(c.exchange.retries);
  field(c.exchange.corrupt_frames);
  field(c.exchange.shared_streams);
  field(c.exchange.push_seconds);
  field(c.exchange.pull_seconds);
}

constexpr size_t kMaxNumbers = 1000;  // of one list

}  // namespace

void SecondsHistogram::Observe(double seconds, const std::vector<double>& bounds) {
  buckets.resize(bounds.size() + 1);
  // As in Prometheus, a bucket contains values up to and including its bound.
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
  for (const SecondsHistogram* histogram : Histograms(counters)) {
    append(static_cast<int64_t>(histogram->buckets.size()));
  }
  append(static_cast<int64_t>(counters.planned_bytes.size()));
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
  const auto take_size = [&](std::vector<int64_t>& numbers) {
    int64_t size = 0;
    take(size);
    ok = ok && size >= 0 && size <= static_cast<int64_t>(kMaxNumbers);
    if (ok) numbers.resize(size);
  };
  for (SecondsHistogram* histogram : Histograms(counters)) take_size(histogram->buckets);
  take_size(counters.planned_bytes);
  if (ok) ForEach(counters, take);
  if (!ok || !bytes.empty()) return absl::InvalidArgumentError("counters of another length");
  return counters;
}

}  // namespace capstan::gpu_worker
