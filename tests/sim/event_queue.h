// The virtual time of a simulation: a queue of events whose order depends only on the seed.
#ifndef CAPSTAN_TESTS_SIM_EVENT_QUEUE_H_
#define CAPSTAN_TESTS_SIM_EVENT_QUEUE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace capstan::sim {

// SplitMix64 (Steele, Lea & Flood 2014): small, seedable, and equal on all machines.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound));
  }
  bool Chance(double probability) {
    return static_cast<double>(Next() >> 11) * 0x1p-53 < probability;
  }
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    return low + absl::Nanoseconds(Below(absl::ToInt64Nanoseconds(high - low) + 1));
  }

 private:
  uint64_t state_;
};

class EventQueue {
 public:
  absl::Duration now() const { return now_; }

  void At(absl::Duration time, std::function<void()> what) {
    queue_.emplace(std::make_pair(std::max(time, now_), next_++), std::move(what));
  }
  void After(absl::Duration delay, std::function<void()> what) {
    At(now_ + delay, std::move(what));
  }

  // Runs the next event. False: the queue is empty.
  bool RunOne() {
    if (queue_.empty()) return false;
    auto first = queue_.begin();
    now_ = first->first.first;
    std::function<void()> what = std::move(first->second);
    queue_.erase(first);
    what();
    return true;
  }

  // Adds `what` and the time to the hash of the run. Two runs of a seed must have equal hashes.
  void Note(absl::string_view what) {
    for (const char c : what) Mix(static_cast<unsigned char>(c));
    const auto time = static_cast<uint64_t>(absl::ToInt64Nanoseconds(now_));
    for (int i = 0; i < 8; ++i) Mix((time >> (8 * i)) & 0xff);
  }
  uint64_t trace_hash() const { return hash_; }

 private:
  void Mix(uint64_t byte) { hash_ = (hash_ ^ byte) * 0x100000001B3u; }  // FNV-1a

  absl::Duration now_ = absl::Seconds(1000);  // an arbitrary origin
  int64_t next_ = 0;
  std::map<std::pair<absl::Duration, int64_t>, std::function<void()>> queue_;
  uint64_t hash_ = 0xCBF29CE484222325u;
};

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_EVENT_QUEUE_H_
