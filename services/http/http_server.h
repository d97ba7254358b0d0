// The single HTTP port of a service: GET /healthz, /readyz and the routes that the service adds,
// e.g. /metrics. The service itself guards its routes (readers.h).
//
// Everybody who reaches the port may read /healthz and /readyz. The port is on 127.0.0.1 by
// default. Any other address uses TLS with the service's certificate, which is read again for each
// connection, or needs --insecure. Clients need no certificate, because scrapers have none.
// SO_REUSEPORT is off, so a second start at one address fails and its message has the address.
//
// No client can occupy the port for long. There is one request per connection, and there are four
// threads. A request, including its handshake, must arrive within 10 s after a thread takes it up,
// and its answer must leave within another 10 s; both limits are 1 s while others wait for a
// thread. A head has at most 32 KiB. A body must be a form of at most 64 KiB with its length, not
// chunked, compressed or in parts. Ranges are refused. A flood still makes others wait.
//
// Thread-safe. Handlers run in the server's threads.
#ifndef CAPSTAN_SERVICES_HTTP_HTTP_SERVER_H_
#define CAPSTAN_SERVICES_HTTP_HTTP_SERVER_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/endpoint/endpoint.h"

namespace capstan::services {

struct HttpRequest {
  std::string path;
  std::multimap<std::string, std::string> parameters;  // of the query and of a form, decoded
  std::map<std::string, std::string> headers;          // by lower-case names
  bool tls = false;
};

// The value of the first cookie of that name, as it was sent; "" if there is none.
std::string CookieOf(const HttpRequest& request, absl::string_view name);
// The text after "Authorization: Bearer "; "" if there is no such header.
std::string BearerTokenOf(const HttpRequest& request);

struct HttpResponse {
  int code = 200;
  std::string body;
  std::string content_type = "text/plain; charset=utf-8";
  std::vector<std::pair<std::string, std::string>> headers;
};

using HttpHandler = std::function<HttpResponse(const HttpRequest&)>;
// The handler of /metrics. It answers with the text that `scrape` returns.
HttpHandler MetricsHandler(std::function<std::string()> scrape);

struct HttpOptions {
  Endpoint listen = {.kind = Endpoint::Kind::kTcp, .path = "", .host = "127.0.0.1", .port = 0};
  Security security;
  std::function<bool()> ready;                // for /readyz: 200 or 503; empty means always ready
  std::map<std::string, HttpHandler> routes;  // additional GET paths, e.g. "/metrics"
  std::map<std::string, HttpHandler> posts;   // POST paths for forms
  // Additional names that a plain request may have in Host; see http_names.h. Every request sent by
  // another site's page is refused.
  std::vector<std::string> names;
  // How long a request may take to arrive, and its answer to leave; must be above 0.
  absl::Duration request_limit = absl::Seconds(10);
  absl::Duration crowded_limit = absl::Seconds(1);  // the same while others wait for a thread
};

// "off" or "" gives nullopt, otherwise ADDR:PORT. InvalidArgument: neither, or a Unix path.
absl::StatusOr<std::optional<Endpoint>> ParseHttpEndpoint(absl::string_view text);

class HttpServer {
 public:
  // Listens once it returns. FailedPrecondition: the address needs --tls-cert and --tls-key, or
  // --insecure, or cannot be bound. InvalidArgument: certificate and key cannot be used.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpOptions options);
  ~HttpServer();  // Stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Includes the port that was chosen.
  const Endpoint& endpoint() const;
  // "http://127.0.0.1:7071", or https. For a wildcard address (0.0.0.0) it has the machine's name.
  std::string url() const;
  // Frees the port. Cuts off clients that are still sending a request or do not take the answer at
  // once, and waits for running handlers. Idempotent.
  void Stop();

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_HTTP_HTTP_SERVER_H_
