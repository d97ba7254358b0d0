// The caller of an RPC, from its certificate. Over a Unix socket or in plaintext there is no
// certificate, and the caller may do everything.
#ifndef CAPSTAN_COORDINATOR_CALLER_H_
#define CAPSTAN_COORDINATOR_CALLER_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/types.h"
#include "grpcpp/server_context.h"

namespace capstan::coordinator {

core::Caller CallerFrom(const grpc::ServerContextBase& context);

// For calls about the whole cluster. PermissionDenied: the caller is not an admin. `what` is the
// name of the method.
absl::Status CheckAdmin(const grpc::ServerContextBase& context, absl::string_view what);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_CALLER_H_
