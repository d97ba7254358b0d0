#include "coordinator/registration.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/security/tokens.h"
#include "services/status/status.h"

namespace capstan::coordinator {
namespace {

constexpr size_t kMaxToldName = 64;  // bytes of a name that may be none

absl::Status CheckCaller(const node::v1::Register& reg, const services::Identity& caller) {
  // A worker's certificate must not make a shard, which would hold other people's weights.
  const common::v1::Role want = caller.role == services::Role::kWorker
                                    ? common::v1::ROLE_WORKER
                                    : common::v1::ROLE_PARAM_STORE;
  if (reg.role() != want) {
    return absl::PermissionDeniedError(absl::StrCat("role ", services::RoleName(caller.role),
                                                    " may not register as ",
                                                    common::v1::Role_Name(reg.role())));
  }
  if (services::ClaimOf(caller, reg.name()) != services::NodeClaim::kAnother) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat("certificate ", caller.name, " may not register node ",
                   services::CutText(reg.name(), kMaxToldName),
                   ": a certificate NAME has the nodes NAME and NAME-*"));
}

}  // namespace

absl::StatusOr<core::NodeConnected> ReadRegistration(
    node::v1::Register reg, const std::optional<services::Identity>& caller) {
  core::NodeConnected out;
  reg.clear_certificate();  // never what the caller says
  if (caller.has_value()) {
    if (absl::Status status = CheckCaller(reg, *caller); !status.ok()) return status;
    reg.set_certificate(caller->name);
    out.named = services::ClaimOf(*caller, reg.name()) == services::NodeClaim::kNamed;
  }
  const size_t size = reg.resume_key().size();
  if (size != 0 && size != services::kResumeKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("register.resume_key: ", size, " bytes, want ", services::kResumeKeyBytes));
  }
  KeepHashOfKey(reg);
  out.reg = std::move(reg);
  return out;
}

void KeepHashOfKey(node::v1::Register& reg) {
  if (reg.resume_key().size() != services::kResumeKeyBytes) return;
  reg.set_resume_key(services::HashToken(reg.resume_key()));
}

}  // namespace capstan::coordinator
