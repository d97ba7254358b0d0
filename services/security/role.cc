#include "services/security/role.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace capstan::services {
namespace {

constexpr absl::string_view kUriPrefix = "capstan:role/";
constexpr struct {
  Role role;
  absl::string_view name;
} kRoles[] = {{Role::kClient, "client"},
              {Role::kAdmin, "admin"},
              {Role::kWorker, "worker"},
              {Role::kParamStore, "param_store"},
              {Role::kCoordinator, "coordinator"}};

}  // namespace

absl::string_view RoleName(Role role) {
  for (const auto& entry : kRoles) {
    if (entry.role == role) return entry.name;
  }
  return "unknown";
}

absl::StatusOr<Role> ParseRole(absl::string_view name) {
  for (const auto& entry : kRoles) {
    if (entry.name == name) return entry.role;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("role '", name, "': want client, admin, worker, param_store or coordinator"));
}

std::string RoleUri(Role role) { return absl::StrCat(kUriPrefix, RoleName(role)); }

absl::StatusOr<Role> ParseRoleUri(absl::string_view uri) {
  if (!absl::ConsumePrefix(&uri, kUriPrefix)) {
    return absl::InvalidArgumentError(absl::StrCat("'", uri, "' names no role"));
  }
  return ParseRole(uri);
}

NodeClaim ClaimOf(const Identity& certificate, absl::string_view node) {
  const std::string& name = certificate.name;
  const bool is_address = name.find_first_not_of("0123456789.") == std::string::npos &&
                          name.find('.') != std::string::npos;
  if (is_address || name == "localhost" || name == RoleName(certificate.role)) {
    return NodeClaim::kNameless;
  }
  const std::string own = absl::StrReplaceAll(name.substr(0, name.find('.')), {{"_", "-"}});
  if (!absl::ConsumePrefix(&node, own)) return NodeClaim::kAnother;
  return node.empty() || node[0] == '-' ? NodeClaim::kNamed : NodeClaim::kAnother;
}

absl::Status CheckIdentityName(absl::string_view name) {
  const auto plain = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); };
  bool good = !name.empty() && name.size() <= 63 && plain(name[0]);
  for (const char c : name) good = good && (plain(c) || c == '.' || c == '-' || c == '_');
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "name '", name, "': want 1 to 63 of a-z, 0-9, '.', '-' and '_', a letter or digit first"));
}

}  // namespace capstan::services
