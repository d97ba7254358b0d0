#include "coordinator/caller.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "services/security/credentials.h"

namespace capstan::coordinator {

core::Caller CallerFrom(const grpc::ServerContextBase& context) {
  const std::optional<services::Identity> identity = services::CallerOf(context);
  if (!identity.has_value()) return {.name = "", .any_job = true};
  return {.name = identity->name, .any_job = identity->role == services::Role::kAdmin};
}

absl::Status CheckAdmin(const grpc::ServerContextBase& context, absl::string_view what) {
  const std::optional<services::Identity> identity = services::CallerOf(context);
  if (!identity.has_value() || identity->role == services::Role::kAdmin) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("role ", services::RoleName(identity->role),
                                                  " may not call ", what, ": want admin"));
}

}  // namespace capstan::coordinator
