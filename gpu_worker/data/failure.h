// The reason with which a job fails because of its data: a word inside the status.
//
//   DataMissing  absent, unreadable or damaged data; another host may have them
//   InvalidSpec  counts, labels or classes that do not fit; no host can do better
//
// HostOutOfMemory, for a lack of memory on the host, is carried in the same way.
#ifndef CAPSTAN_GPU_WORKER_DATA_FAILURE_H_
#define CAPSTAN_GPU_WORKER_DATA_FAILURE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace capstan::data {

// The reason in `status`, or "" if there is none. It survives copies, but not a new status made
// from the message.
std::string FailureReason(const absl::Status& status);

// `status`, which must not be OK, with this reason.
absl::Status WithReason(absl::Status status, absl::string_view reason);
// `status`, which must not be OK, with "<what>: " in front of its text. Keeps the reason.
absl::Status InFront(absl::string_view what, const absl::Status& status);
// ResourceExhausted, HostOutOfMemory: "<who>: the host is out of memory".
absl::Status HostOutOfMemory(absl::string_view who);
absl::Status DataMissing(absl::StatusCode code, absl::string_view message);
// DataLoss, DataMissing: "<file>: <what>".
absl::Status Damaged(absl::string_view file, absl::string_view what);
// InvalidArgument, InvalidSpec.
absl::Status InvalidSpec(absl::string_view message);

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_FAILURE_H_
