// The one HTTP port of a service: GET /healthz, /readyz and what the service adds, which guards
// that itself (readers.h): /metrics and others.
//
// /healthz and /readyz are for anybody who reaches the port. It is 127.0.0.1 by default; any other
// address is TLS with the service's certificate, read again for each connection, or needs
// --insecure. No certificate is asked of the caller: a scraper has none. Without SO_REUSEPORT: a
// second start at one address fails with the address in its message.
//
// No client can hold it for long. One request per connection, four threads. A request, its
// handshake included, has 10 s once a thread takes it up, and so has its answer; 1 s while others
// wait for a thread. A head has 32 KiB; a body is a form of at most 64 KiB that says its length,
// not chunked, compressed or in parts; ranges are refused. A flood still makes others wait.
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
  std::map<std::string, std::string> headers;          // by their names in small letters
  bool tls = false;
};

// The value of the first cookie of that name, as it was sent; "": there is none.
std::string CookieOf(const HttpRequest& request, absl::string_view name);
// What follows "Authorization: Bearer "; "": no such header.
std::string BearerTokenOf(const HttpRequest& request);

struct HttpResponse {
  int code = 200;
  std::string body;
  std::string content_type = "text/plain; charset=utf-8";
  std::vector<std::pair<std::string, std::string>> headers;
};

using HttpHandler = std::function<HttpResponse(const HttpRequest&)>;
// Of /metrics: answers with the text that `scrape` gives.
HttpHandler MetricsHandler(std::function<std::string()> scrape);

struct HttpOptions {
  Endpoint listen = {.kind = Endpoint::Kind::kTcp, .path = "", .host = "127.0.0.1", .port = 0};
  Security security;
  std::function<bool()> ready;                // of /readyz: 200 or 503; empty: always ready
  std::map<std::string, HttpHandler> routes;  // further GET paths, e.g. "/metrics"
  std::map<std::string, HttpHandler> posts;   // POST paths, of forms
  // Further names that a plain request may have in Host: http_names.h. Any request that another
  // site's page sent is refused.
  std::vector<std::string> names;
  // How long a request may take to arrive, and its answer to leave; above 0.
  absl::Duration request_limit = absl::Seconds(10);
  absl::Duration crowded_limit = absl::Seconds(1);  // the same while others wait for a thread
};

// "off" or "" gives nullopt, otherwise ADDR:PORT. InvalidArgument: neither, or a Unix path.
absl::StatusOr<std::optional<Endpoint>> ParseHttpEndpoint(absl::string_view text);

class HttpServer {
 public:
  // Listens when it returns. FailedPrecondition: the address needs --tls-cert and --tls-key, or
  // --insecure, or cannot be bound; InvalidArgument: the two cannot be used.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(HttpOptions options);
  ~HttpServer();  // Stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // With the port that was chosen.
  const Endpoint& endpoint() const;
  // "http://127.0.0.1:7071", or https; every address (0.0.0.0) is told by the machine's name.
  std::string url() const;
  // Frees the port. Cuts off who is still sending a request or does not take the answer at once,
  // and waits for the handlers that run. Idempotent.
  void Stop();

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_HTTP_HTTP_SERVER_H_
