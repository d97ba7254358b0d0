#include "coordinator/registration.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/security/tokens.h"
#include "services/status/status.h"
#include "services/version/version.h"

namespace capstan::coordinator {
namespace {

constexpr size_t kMaxToldName = 64;  // bytes shown of a name that may be invalid

// The first two numbers of MAJOR.MINOR.PATCH; nullopt: the text is not of that form.
std::optional<std::pair<int64_t, int64_t>> ReleaseOf(absl::string_view version) {
  const std::vector<absl::string_view> parts = absl::StrSplit(version, '.');
  int64_t major = 0;
  int64_t minor = 0;
  if (parts.size() < 3 || !absl::SimpleAtoi(parts[0], &major) ||
      !absl::SimpleAtoi(parts[1], &minor) || major < 0 || minor < 0) {
    return std::nullopt;
  }
  return std::pair(major, minor);
}

absl::Status CheckCaller(const node::v1::Register& reg, const services::Identity& caller) {
  // A worker's certificate must not register a shard, which would hold other people's weights.
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
  reg.clear_certificate();  // the caller's own claim never counts
  if (caller.has_value()) {
    if (absl::Status status = CheckCaller(reg, *caller); !status.ok()) return status;
    reg.set_certificate(caller->name);
    out.named = services::ClaimOf(*caller, reg.name()) == services::NodeClaim::kNamed;
  }
  if (absl::Status status = CheckVersion(reg, Version()); !status.ok()) return status;
  const size_t size = reg.resume_key().size();
  if (size != 0 && size != services::kResumeKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("register.resume_key: ", size, " bytes, want ", services::kResumeKeyBytes));
  }
  KeepHashOfKey(reg);
  out.reg = std::move(reg);
  return out;
}

absl::Status CheckVersion(const node::v1::Register& reg, absl::string_view ours) {
  if (reg.version().empty()) return absl::OkStatus();
  const auto theirs = ReleaseOf(reg.version());
  const auto here = ReleaseOf(ours);
  if (theirs.has_value() && here.has_value() && theirs->first == here->first &&
      std::max(theirs->second, here->second) - std::min(theirs->second, here->second) <= 1) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "node ", services::CutText(reg.name(), kMaxToldName), " has version ",
      services::CutText(reg.version(), kMaxToldName), ", this coordinator ", ours,
      ": versions work together if the first number is the same and the second differs by at most "
      "1; see docs/upgrades.md"));
}

void KeepHashOfKey(node::v1::Register& reg) {
  if (reg.resume_key().size() != services::kResumeKeyBytes) return;
  reg.set_resume_key(services::HashToken(reg.resume_key()));
}

}  // namespace capstan::coordinator
