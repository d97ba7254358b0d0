// Who makes a call, as its certificate says. Over a Unix socket or in plaintext nobody is asked, and
// the caller may do everything.
#ifndef CAPSTAN_COORDINATOR_CALLER_H_
#define CAPSTAN_COORDINATOR_CALLER_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/types.h"
#include "grpcpp/server_context.h"

namespace capstan::coordinator {

core::Caller CallerFrom(const grpc::ServerContextBase& context);

// For what concerns the whole cluster. PermissionDenied: the caller is no admin; `what` is the
// method's name.
absl::Status CheckAdmin(const grpc::ServerContextBase& context, absl::string_view what);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_CALLER_H_
