// Makes the core's event of a registration. It contains the certificate's identity, and the hash of
// the resume key instead of the key.
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

// `caller` is not set if there was no certificate. PermissionDenied: the certificate does not allow
// this role or this name. InvalidArgument: the key has a wrong length. FailedPrecondition: the
// node's version does not work with this one (CheckVersion).
absl::StatusOr<core::NodeConnected> ReadRegistration(
    node::v1::Register reg, const std::optional<services::Identity>& caller);

// FailedPrecondition: docs/upgrades.md does not promise that a node of that version works with a
// coordinator of version `ours`; the message has the node and both versions. Versions are
// MAJOR.MINOR.PATCH. A node that names no version is accepted.
absl::Status CheckVersion(const node::v1::Register& reg, absl::string_view ours);

// Replaces a resume key with its hash, since coordinators before resume keys stored it unchanged.
// Can be repeated.
void KeepHashOfKey(node::v1::Register& reg);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_REGISTRATION_H_
