#include "client/launch/authority.h"

#include "absl/strings/str_cat.h"
#include "services/files/files.h"
#include "services/security/tokens.h"

namespace capstan::client {
namespace {

// The key ends with the launch, so this only limits how long a job may run.
constexpr absl::Duration kLifetime = absl::Hours(24 * 365);

}  // namespace

absl::StatusOr<LaunchAuthority> LaunchAuthority::Create(
    const std::vector<services::Identity>& members, absl::Time now) {
  LaunchAuthority made;
  absl::StatusOr<services::KeyPair> pair =
      services::MakeAuthority("Capstan launch", now, kLifetime);
  if (!pair.ok()) return pair.status();
  made.authority_ = *std::move(pair);
  std::vector<services::TokenEntry> entries;
  for (const services::Identity& member : members) {
    const std::string token = services::MakeToken();
    entries.push_back({services::HashToken(token), member, now + kLifetime});
    made.token_[member.name] = token;
  }
  made.tokens_ = services::FormatTokens(entries);
  return made;
}

absl::Status LaunchAuthority::Equip(NodeBundle& bundle, absl::Time now) const {
  const absl::StatusOr<services::KeyPair> pair =
      services::IssueCertificate(authority_, {.identity = {bundle.role, bundle.name},
                                              .hosts = {bundle.address},
                                              .now = now,
                                              .lifetime = kLifetime});
  if (!pair.ok()) return pair.status();
  bundle.authority = authority_.certificate;
  bundle.certificate = pair->certificate;
  bundle.key = pair->key;
  bundle.token = token_.at(bundle.name);
  bundle.tokens = tokens_;
  return absl::OkStatus();
}

absl::StatusOr<services::Security> WriteSecrets(const NodeBundle& bundle,
                                                const std::string& folder) {
  const std::string stem = absl::StrCat(folder, "/", std::string(services::RoleName(bundle.role)));
  services::Security security;
  security.tls_ca = stem + ".ca";
  security.tls_cert = stem + ".crt";
  security.tls_key = stem + ".key";
  security.token_file = stem + ".token";
  security.tokens = stem + ".tokens";
  const std::pair<const std::string*, std::string> files[] = {
      {&security.tls_ca, bundle.authority},
      {&security.tls_cert, bundle.certificate},
      {&security.tls_key, bundle.key},
      {&security.token_file, bundle.token + "\n"},
      {&security.tokens, bundle.tokens}};
  for (const auto& [path, text] : files) {
    const absl::Status status =
        services::WriteFileAtomically(*path, text, {.replace = false, .mode = 0600, .sync = false});
    if (!status.ok()) return status;
  }
  return security;
}

}  // namespace capstan::client
