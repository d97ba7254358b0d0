// Roles and names in a cluster. A certificate names one role and one name, and so does a token. A
// call is accepted only if they agree.
//
// Thread-safe: values and pure functions. Knows no gRPC.
#ifndef CAPSTAN_SERVICES_SECURITY_ROLE_H_
#define CAPSTAN_SERVICES_SECURITY_ROLE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::services {

enum class Role {
  kClient,       // a person's `capstan`: JobService
  kAdmin,        // the same, for everybody's jobs
  kWorker,       // capstan_gpu_worker: NodeService, Exchange
  kParamStore,   // capstan_param_store: NodeService, Exchange with the lead
  kCoordinator,  // capstan_coordinator: calls nobody
};

struct Identity {
  Role role = Role::kClient;
  std::string name;  // the common name: a person, a node, a host

  friend bool operator==(const Identity& a, const Identity& b) {
    return a.role == b.role && a.name == b.name;
  }
  friend bool operator!=(const Identity& a, const Identity& b) { return !(a == b); }
};

// "client", "admin", "worker", "param_store", "coordinator".
absl::string_view RoleName(Role role);
// InvalidArgument: none of the five.
absl::StatusOr<Role> ParseRole(absl::string_view name);

// The URI among the subject's alternative names that gives the role: "capstan:role/worker".
std::string RoleUri(Role role);
// InvalidArgument: another URI, or an unknown role.
absl::StatusOr<Role> ParseRoleUri(absl::string_view uri);

// Whether a certificate's name allows the name of a node that registers with it.
enum class NodeClaim {
  kNamed,     // the certificate is for this node
  kNameless,  // the certificate names no node, but an address, "localhost", or the role itself
  kAnother,   // the certificate is for other nodes
};
// A certificate NAME allows the nodes NAME and NAME-*. Of a host name only the first label counts,
// and '_' counts as '-': "gpu_1.example.com" allows gpu-1 and gpu-1-*.
NodeClaim ClaimOf(const Identity& certificate, absl::string_view node);

// OK for 1 to 63 of a-z, 0-9, '.', '-' and '_', beginning with a letter or digit.
absl::Status CheckIdentityName(absl::string_view name);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SECURITY_ROLE_H_
