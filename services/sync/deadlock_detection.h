// Turns off Abseil's own search for deadlocks among its mutexes, which gRPC's threads pay for on
// every lock: 10 to 20 % of a small message. Stands here because nothing else may name absl::Mutex.
// Whoever includes it links absl::synchronization.
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
