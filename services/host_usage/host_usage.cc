#include "services/host_usage/host_usage.h"

#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "services/clock/clock.h"

namespace capstan::services {

void HostUsage::Fill(common::v1::NodeUsage* usage) { Fill(MonotonicNow(), usage); }

void HostUsage::Fill(absl::Duration now, common::v1::NodeUsage* usage) {
  if (now - read_at_ >= absl::Seconds(1)) {
    read_at_ = now;
    Read();
  }
  usage->MergeFrom(last_);
}

void HostUsage::Read() {
  last_.Clear();
  std::ifstream stat(absl::StrCat(proc_, "/stat"));
  std::string word;
  if (stat >> word && word == "cpu") {
    // user nice system idle iowait irq softirq steal. The time of guests is already part of user.
    int64_t busy = 0;
    int64_t all = 0;
    int64_t ticks = 0;
    for (int i = 0; i < 8 && stat >> ticks; ++i) {
      all += ticks;
      if (i != 3 && i != 4) busy += ticks;
    }
    if (busy_ >= 0 && all > ticks_) {
      last_.set_cpu_ratio(static_cast<double>(busy - busy_) / static_cast<double>(all - ticks_));
    }
    busy_ = busy;
    ticks_ = all;
  }
  std::ifstream meminfo(absl::StrCat(proc_, "/meminfo"));
  int64_t total = -1;
  int64_t available = -1;
  for (std::string line; std::getline(meminfo, line);) {
    std::istringstream words(line);
    int64_t kib = 0;
    if (!(words >> word >> kib)) continue;
    if (word == "MemTotal:") total = kib * 1024;
    if (word == "MemAvailable:") available = kib * 1024;
  }
  if (total >= 0 && available >= 0) {
    last_.set_memory_total_bytes(total);
    last_.set_memory_used_bytes(total - available);
  }
}

}  // namespace capstan::services
