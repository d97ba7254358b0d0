#include "client/exit_codes.h"

namespace capstan::client {

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitDone;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitUnreachable;
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
      return kExitRefused;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    default:
      return kExitInternal;
  }
}

ExitCode ExitCodeOf(common::v1::JobState state) {
  switch (state) {
    case common::v1::JOB_STATE_SUCCEEDED:
      return kExitDone;
    case common::v1::JOB_STATE_FAILED:
      return kExitFailed;
    case common::v1::JOB_STATE_CANCELLED:
      return kExitCancelled;
    default:
      return kExitNotFinished;
  }
}

bool IsTerminal(common::v1::JobState state) { return ExitCodeOf(state) != kExitNotFinished; }

}  // namespace capstan::client
