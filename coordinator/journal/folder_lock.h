// Keeps every other coordinator out of a state folder.
#ifndef CAPSTAN_COORDINATOR_JOURNAL_FOLDER_LOCK_H_
#define CAPSTAN_COORDINATOR_JOURNAL_FOLDER_LOCK_H_

#include <string>

#include "absl/status/statusor.h"

namespace capstan::coordinator {

// Locks `folder`/lock, which is made if it is missing. Waits up to 2 s for its holder. The caller
// owns the descriptor; closing it, or the end of the process, releases the lock.
// FailedPrecondition: another process holds it; the message names that process.
absl::StatusOr<int> LockFolder(const std::string& folder);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_JOURNAL_FOLDER_LOCK_H_
