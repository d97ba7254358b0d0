// absl::Status <-> grpc::Status, with google.rpc details on the wire.
//
// A detail is a payload of the absl::Status under "type.googleapis.com/<message name>".
// ToGrpcStatus puts every such payload into the trailing metadata `grpc-status-details-bin`;
// FromGrpcStatus restores them. Both cut so that the trailers stay below the metadata limit of our
// servers and channels (kMaxMetadataBytes). They cut the message to kMaxMessageBytes, then field
// violations from the end, then whole details.
//
// Thread-safe: free functions over values.
#ifndef CAPSTAN_SERVICES_STATUS_STATUS_H_
#define CAPSTAN_SERVICES_STATUS_STATUS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace grpc {
class Status;
}  // namespace grpc

namespace capstan::services {

inline constexpr int kMaxMetadataBytes = 16 * 1024;  // of one RPC, each direction
inline constexpr int kMaxMessageBytes = 2 * 1024;    // may grow threefold by percent-encoding
inline constexpr int kMaxDetailBytes = 6 * 1024;     // serialized google.rpc.Status

grpc::Status ToGrpcStatus(const absl::Status& status);
// A code that is not a canonical one becomes kUnknown. Damaged details are dropped.
absl::Status FromGrpcStatus(const grpc::Status& status);

// google.rpc.ErrorInfo of the domain "capstan".
struct ErrorReason {
  std::string reason;                           // UPPER_SNAKE_CASE
  std::map<std::string, std::string> metadata;  // no secret
};
// google.rpc.BadRequest.FieldViolation.
struct FieldViolation {
  std::string field;        // e.g. "training.epochs"
  std::string description;  // got, want
};

// Each returns `status` with the detail set. An OK status is returned unchanged.
absl::Status WithReason(absl::Status status, const ErrorReason& reason);
absl::Status WithViolations(absl::Status status, const std::vector<FieldViolation>& violations);

// nullopt / empty if the detail is absent or damaged.
std::optional<ErrorReason> GetReason(const absl::Status& status);
std::vector<FieldViolation> GetViolations(const absl::Status& status);

// Cuts `text` to at most `max_bytes`, at a UTF-8 boundary, and ends it with "..." if it was longer.
std::string CutText(absl::string_view text, size_t max_bytes);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_STATUS_STATUS_H_
