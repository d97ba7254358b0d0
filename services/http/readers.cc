#include "services/http/readers.h"

#include <utility>

#include "absl/time/clock.h"
#include "services/logging/log.h"
#include "services/security/tokens.h"

namespace capstan::services {
namespace {

std::string TokenIn(const HttpRequest& request) {
  std::string token = BearerTokenOf(request);
  return token.empty() ? CookieOf(request, TokenCookieName(request.tls)) : token;
}

HttpResponse MetricsRefusal() {
  HttpResponse response{
      .code = 401,
      .body =
          "It names jobs, and on the coordinator their owners. Send the token of a client or admin "
          "of the service's --tokens (prometheus.yml: authorization: {type: Bearer, "
          "credentials_file: FILE}), ask on loopback, or start the service with "
          "--open-metrics.\n"};
  response.headers = {{"WWW-Authenticate", "Bearer"},
                      {"Cache-Control", "no-store"},
                      {"X-Content-Type-Options", "nosniff"}};
  return response;
}

}  // namespace

const char* TokenCookieName(bool tls) { return tls ? "__Host-capstan_token" : "capstan_token"; }

bool MetricsAreOpen(const Security& security, bool open_metrics, const Endpoint& http) {
  return open_metrics || http.is_unix() || IsLoopback(http.host) ||
         (security.insecure && security.tokens.empty());
}

Readers::Readers(const Security& security, std::unique_ptr<TokenTable> tokens)
    : security_(security), tokens_(std::move(tokens)) {}

Readers::~Readers() = default;

absl::StatusOr<std::unique_ptr<Readers>> Readers::Create(const Security& security) {
  std::unique_ptr<TokenTable> tokens;
  if (!security.tokens.empty()) {
    absl::StatusOr<std::unique_ptr<TokenTable>> opened = TokenTable::Open(security.tokens);
    if (!opened.ok()) return opened.status();
    tokens = *std::move(opened);
  }
  return std::unique_ptr<Readers>(new Readers(security, std::move(tokens)));
}

std::optional<Identity> Readers::Find(const std::string& token) {
  if (tokens_ == nullptr) return std::nullopt;
  std::optional<Identity> who = tokens_->Find(token, absl::Now());
  const bool reads = who.has_value() && (who->role == Role::kAdmin || who->role == Role::kClient);
  return reads ? who : std::nullopt;
}

Readers::Access Readers::Check(const HttpRequest& request, std::optional<Identity>* who) {
  if (who != nullptr) who->reset();
  if (tokens_ == nullptr) return security_.insecure ? Access::kGranted : Access::kClosed;
  const std::string token = TokenIn(request);
  if (token.empty()) return Access::kNoToken;
  std::optional<Identity> reader = Find(token);
  if (!reader.has_value()) return Access::kWrongToken;
  if (who != nullptr) *who = std::move(reader);
  return Access::kGranted;
}

HttpHandler Readers::ForMetrics(HttpHandler handler, bool open_metrics, const Endpoint& http) {
  if (MetricsAreOpen(security_, open_metrics, http)) return handler;
  if (tokens_ == nullptr) {
    Log(kWarning, "metrics_closed")
        .Kv("http", http.ToString())
        .Kv("why", "off loopback, without --tokens and --open-metrics");
  }
  return [this, handler = std::move(handler)](const HttpRequest& request) {
    return Check(request) == Access::kGranted ? handler(request) : MetricsRefusal();
  };
}

}  // namespace capstan::services
