// Turns off Abseil's deadlock detection for its mutexes, which costs gRPC's threads time on every
// lock: 10 to 20 % of a small message. It is here because no other file may name absl::Mutex. Code
// that includes this header must link absl::synchronization.
#ifndef CAPSTAN_SERVICES_SYNC_DEADLOCK_DETECTION_H_
#define CAPSTAN_SERVICES_SYNC_DEADLOCK_DETECTION_H_

#include "absl/synchronization/mutex.h"

namespace capstan {

// Thread-safe.
inline void TurnOffAbslDeadlockDetection() {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace capstan

#endif  // CAPSTAN_SERVICES_SYNC_DEADLOCK_DETECTION_H_
