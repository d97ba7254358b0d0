#include "services/descriptors/descriptors.h"

#include <sys/resource.h>

#include <algorithm>

namespace capstan::services {

constexpr int kReserve = 256;

int DescriptorLimit() {
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return 1024;
  return static_cast<int>(std::min<rlim_t>(files.rlim_cur, 1 << 30));
}

int DescriptorReserve(int limit) { return std::min(kReserve, limit / 4); }

bool IsInReserve(int fd) {
  const int limit = DescriptorLimit();
  return fd >= limit - DescriptorReserve(limit);
}

}  // namespace capstan::services
