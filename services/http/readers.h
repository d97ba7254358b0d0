// Who may read the HTTP port's data about a cluster: everybody with a token of a client or an admin
// in tokens.json, as `Authorization: Bearer` or in the cookie of the status page.
#ifndef CAPSTAN_SERVICES_HTTP_READERS_H_
#define CAPSTAN_SERVICES_HTTP_READERS_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "services/endpoint/endpoint.h"
#include "services/http/http_server.h"
#include "services/security/role.h"

namespace capstan::services {

class TokenTable;

// The cookie that holds a token. Over TLS its prefix makes browsers refuse the cookie unless it
// came over TLS and from exactly this host.
const char* TokenCookieName(bool tls);

// Whether everybody who reaches `http` may read /metrics, which name jobs, and /sd of the
// coordinator. True on loopback, if no token is required anywhere (--insecure without --tokens),
// and with --open-metrics.
bool MetricsAreOpen(const Security& security, bool open_metrics, const Endpoint& http);

// Thread-safe.
class Readers {
 public:
  // Uses --tokens. Without it nobody may read, or everybody with --insecure. Returns the errors of
  // TokenTable::Open.
  static absl::StatusOr<std::unique_ptr<Readers>> Create(const Security& security);
  ~Readers();
  Readers(const Readers&) = delete;
  Readers& operator=(const Readers&) = delete;

  enum class Access { kGranted, kNoToken, kWrongToken, kClosed };
  // Sets `who`, if it is not null, to the owner of the token; nullopt if no token is required.
  Access Check(const HttpRequest& request, std::optional<Identity>* who = nullptr);
  // nullopt: the token's owner may not read, or the token is unknown.
  std::optional<Identity> Find(const std::string& token);
  bool has_tokens() const { return tokens_ != nullptr; }

  // Wraps `handler` of /metrics or /sd of the port `http`. It is open to everybody if
  // MetricsAreOpen, else to readers; all others get 401 with instructions. Borrows this object.
  // Logs a line if nobody can be a reader.
  HttpHandler ForMetrics(HttpHandler handler, bool open_metrics, const Endpoint& http);

 private:
  Readers(const Security& security, std::unique_ptr<TokenTable> tokens);

  const Security security_;
  const std::unique_ptr<TokenTable> tokens_;  // null without --tokens
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_HTTP_READERS_H_
