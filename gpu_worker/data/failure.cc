#include "gpu_worker/data/failure.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

namespace capstan::data {
namespace {

constexpr absl::string_view kPayload = "capstan.dev/failure_reason";

}  // namespace

absl::Status WithReason(absl::Status status, absl::string_view reason) {
  status.SetPayload(kPayload, absl::Cord(reason));
  return status;
}

std::string FailureReason(const absl::Status& status) {
  const absl::optional<absl::Cord> reason = status.GetPayload(kPayload);
  return reason.has_value() ? std::string(*reason) : "";
}

absl::Status InFront(absl::string_view what, const absl::Status& status) {
  absl::Status longer(status.code(), absl::StrCat(what, ": ", status.message()));
  const std::string reason = FailureReason(status);
  return reason.empty() ? longer : WithReason(std::move(longer), reason);
}

absl::Status HostOutOfMemory(absl::string_view who) {
  return WithReason(absl::ResourceExhaustedError(absl::StrCat(who, ": the host is out of memory")),
                    "HostOutOfMemory");
}

absl::Status DataMissing(absl::StatusCode code, absl::string_view message) {
  return WithReason(absl::Status(code, message), "DataMissing");
}

absl::Status Damaged(absl::string_view file, absl::string_view what) {
  return DataMissing(absl::StatusCode::kDataLoss, absl::StrCat(file, ": ", what));
}

absl::Status InvalidSpec(absl::string_view message) {
  return WithReason(absl::InvalidArgumentError(message), "InvalidSpec");
}

}  // namespace capstan::data
