#include "param_store/load_meter.h"

#include <algorithm>

namespace capstan::param_store {

void LoadMeter::Window::Add(double seconds) {
  seconds_[static_cast<size_t>(count_++) % seconds_.size()] = static_cast<float>(seconds);
}

std::optional<double> LoadMeter::Window::P99() const {
  if (count_ == 0) return std::nullopt;
  std::array<float, 256> sorted = seconds_;
  const int64_t size = std::min<int64_t>(count_, static_cast<int64_t>(sorted.size()));
  float* const at = sorted.data() + (size * 99 + 99) / 100 - 1;
  std::nth_element(sorted.data(), at, sorted.data() + size);
  return *at;
}

void LoadMeter::Pushed(absl::Duration took, size_t bytes) {
  pushes_.Add(absl::ToDoubleSeconds(took));
  pushed_ += 1;
  bytes_in_ += static_cast<double>(bytes);
  traffic_ += static_cast<int64_t>(bytes);
}

void LoadMeter::Sent(size_t bytes) {
  bytes_out_ += static_cast<double>(bytes);
  traffic_ += static_cast<int64_t>(bytes);
}

void LoadMeter::Pulled(absl::Duration took) {
  pulls_.Add(absl::ToDoubleSeconds(took));
  pulled_ += 1;
}

common::v1::ShardLoad LoadMeter::Report(absl::Duration now, int64_t lineage, int64_t version) {
  if (lineage != lineage_ && version >= 0) {
    lineage_ = lineage;
    base_ = version;
    traffic_ = 0;
  }
  if (begin_ == -absl::InfiniteDuration()) begin_ = now;
  if (now - begin_ >= absl::Seconds(1)) {
    const double seconds = absl::ToDoubleSeconds(now - begin_);
    rates_.set_pushes_per_second(pushed_ / seconds);
    rates_.set_pulls_per_second(pulled_ / seconds);
    rates_.set_bytes_in_per_second(bytes_in_ / seconds);
    rates_.set_bytes_out_per_second(bytes_out_ / seconds);
    pushed_ = pulled_ = bytes_in_ = bytes_out_ = 0;
    begin_ = now;
  }
  common::v1::ShardLoad load = rates_;
  load.set_traffic_bytes(traffic_);
  load.set_traffic_steps(std::max<int64_t>(0, version - base_));
  if (const auto p99 = pushes_.P99(); p99.has_value()) load.set_push_p99_seconds(*p99);
  if (const auto p99 = pulls_.P99(); p99.has_value()) load.set_pull_p99_seconds(*p99);
  return load;
}

}  // namespace capstan::param_store
