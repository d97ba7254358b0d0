// The clock for durations and deadlines. A wall clock may be changed in between.
#ifndef CAPSTAN_SERVICES_CLOCK_CLOCK_H_
#define CAPSTAN_SERVICES_CLOCK_CLOCK_H_

#include <chrono>

#include "absl/time/time.h"

namespace capstan {

// The host's monotonic clock, since an arbitrary origin. Thread-safe.
inline absl::Duration MonotonicNow() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace capstan

#endif  // CAPSTAN_SERVICES_CLOCK_CLOCK_H_
