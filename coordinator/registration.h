// What the coordinator's core is told of a registration: whose certificate it came with, and the
// hash of its resume key instead of the key.
#ifndef CAPSTAN_COORDINATOR_REGISTRATION_H_
#define CAPSTAN_COORDINATOR_REGISTRATION_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "capstan/node/v1/node.pb.h"
#include "coordinator/core/types.h"
#include "services/security/role.h"

namespace capstan::coordinator {

// `caller` is not set where nobody was asked for a certificate. PermissionDenied: the certificate
// may not register this role, or not this name. InvalidArgument: a key of another length.
// FailedPrecondition: its version does not work with this one (CheckVersion).
absl::StatusOr<core::NodeConnected> ReadRegistration(
    node::v1::Register reg, const std::optional<services::Identity>& caller);

// FailedPrecondition: a node of that version and a coordinator of version `ours` are outside of the
// promise of docs/upgrades.md; the message has the node and both versions. Versions are
// MAJOR.MINOR.PATCH. A node that names none is not judged.
absl::Status CheckVersion(const node::v1::Register& reg, absl::string_view ours);

// A coordinator of before resume keys has kept a key as it came; afterwards its hash is in its
// place. Repeatable.
void KeepHashOfKey(node::v1::Register& reg);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_REGISTRATION_H_
