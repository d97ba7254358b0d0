#include "client/text/exit_codes.h"

namespace capstan::client {

ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitDone;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:  // a node, a checkpoint
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
