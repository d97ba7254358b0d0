// Who may read what an HTTP port says of a cluster: whoever shows the token of a client or an admin
// of tokens.json, as `Authorization: Bearer` or in the cookie of the status page.
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

// The cookie that holds a token. Over TLS its prefix has browsers refuse it unless it came over
// TLS, from this host alone.
const char* TokenCookieName(bool tls);

// Whether /metrics, which name jobs, and /sd of the coordinator are for everybody who reaches
// `http`: on loopback, where nobody is asked at all (--insecure without --tokens), and with
// --open-metrics.
bool MetricsAreOpen(const Security& security, bool open_metrics, const Endpoint& http);

// Thread-safe.
class Readers {
 public:
  // Of --tokens; without it nobody may read, or with --insecure everybody. What TokenTable::Open
  // says.
  static absl::StatusOr<std::unique_ptr<Readers>> Create(const Security& security);
  ~Readers();
  Readers(const Readers&) = delete;
  Readers& operator=(const Readers&) = delete;

  enum class Access { kGranted, kNoToken, kWrongToken, kClosed };
  // `who`, where it is not null, gets whose token was shown; nobody where nobody is asked.
  Access Check(const HttpRequest& request, std::optional<Identity>* who = nullptr);
  // nullopt: nobody who may read.
  std::optional<Identity> Find(const std::string& token);
  bool has_tokens() const { return tokens_ != nullptr; }

  // `handler` of /metrics or /sd of the port `http`: for everybody where MetricsAreOpen, else for
  // readers; all others get 401 and what to do. Borrows this object. Where nobody can be a reader a
  // log line says so.
  HttpHandler ForMetrics(HttpHandler handler, bool open_metrics, const Endpoint& http);

 private:
  Readers(const Security& security, std::unique_ptr<TokenTable> tokens);

  const Security security_;
  const std::unique_ptr<TokenTable> tokens_;  // null: none
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_HTTP_READERS_H_
