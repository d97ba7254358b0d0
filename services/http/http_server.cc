#include "services/http/http_server.h"

#include <httplib.h>
#include <openssl/ssl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/http/http_names.h"
#include "services/http/http_stream.h"
#include "services/logging/log.h"
#include "services/sync/mutex.h"

namespace capstan::services {
namespace {

constexpr int kThreads = 4;
constexpr int kMaxConnections = 16;  // served or waiting; others wait in the kernel

// Shared state of a server's connections. Thread-safe.
struct Load {
  std::atomic<bool> stopping{false};
  std::atomic<bool> crowded{false};  // a connection waits for a thread
};

// A pool that can block the accepting thread. Each connection holds a descriptor, and the process
// needs some for files.
class ConnectionQueue : public httplib::TaskQueue {
 public:
  explicit ConnectionQueue(Load& load) : load_(load) {}

  void enqueue(std::function<void()> serve) override {
    MutexLock lock(mu_);
    while (connections_ == kMaxConnections) fewer_.Wait(mu_);
    CountLocked(+1);
    pool_.enqueue([this, serve = std::move(serve)] {
      serve();
      MutexLock done(mu_);
      CountLocked(-1);
      fewer_.NotifyAll();
    });
  }
  void shutdown() override { pool_.shutdown(); }

 private:
  void CountLocked(int more) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    connections_ += more;
    load_.crowded = connections_ > kThreads;
  }

  Load& load_;
  Mutex mu_;
  CondVar fewer_;
  int connections_ ABSL_GUARDED_BY(mu_) = 0;
  httplib::ThreadPool pool_{kThreads};
};

struct FreeContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using TlsContext = std::unique_ptr<SSL_CTX, FreeContext>;

// httplib's server on HttpStream.
class StreamServer : public httplib::Server {
 public:
  // `tls`: null for plaintext.
  StreamServer(TlsContext tls, absl::Duration request_limit, absl::Duration crowded_limit)
      : tls_(std::move(tls)), request_limit_(request_limit), crowded_limit_(crowded_limit) {
    new_task_queue = [this] { return new ConnectionQueue(load_); };
  }

  // Ends the requests in flight, each at its next wait, and the listening thread.
  void Stop() {
    load_.stopping = true;
    stop();
  }

 private:
  bool process_and_close_socket(socket_t fd) override {
    HttpStream stream(fd, tls_.get(), [this] { return Patience(); });
    bool closed = false;
    // One request per connection, because a kept connection would hold a thread.
    return stream.Open() && process_request(stream, /*close_connection=*/true, closed, nullptr);
  }

  absl::Duration Patience() const {
    if (load_.stopping) return absl::ZeroDuration();
    return load_.crowded ? std::min(crowded_limit_, request_limit_) : request_limit_;
  }

  const TlsContext tls_;
  const absl::Duration request_limit_;
  const absl::Duration crowded_limit_;
  Load load_;
};

void SetSocketOptions(socket_t fd) {
  // Replaces the library's default, which also sets SO_REUSEPORT.
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
}

// Loads the current certificate and key for a new connection.
bool LoadCertificate(SSL* ssl, const Security& security) {
  return SSL_use_certificate_chain_file(ssl, security.tls_cert.c_str()) == 1 &&
         SSL_use_PrivateKey_file(ssl, security.tls_key.c_str(), SSL_FILETYPE_PEM) == 1 &&
         SSL_check_private_key(ssl) == 1;
}

int OnHandshake(SSL* ssl, void* security) {
  return LoadCertificate(ssl, *static_cast<const Security*>(security)) ? 1 : 0;
}

// FailedPrecondition: OpenSSL makes no context; InvalidArgument: certificate and key cannot be
// used. Borrows `security`, whose files are read again for each connection.
absl::StatusOr<TlsContext> MakeTlsContext(Security& security) {
  TlsContext context(SSL_CTX_new(TLS_server_method()));
  if (!context) return absl::FailedPreconditionError("OpenSSL: no TLS context");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);  // strangers would fill it
  SSL_CTX_set_cert_cb(context.get(), OnHandshake, &security);
  SSL* const trial = SSL_new(context.get());
  const bool usable = trial != nullptr && LoadCertificate(trial, security);
  SSL_free(trial);
  if (usable) return context;
  return absl::InvalidArgumentError(absl::StrCat("--tls-cert ", security.tls_cert,
                                                 " with --tls-key ", security.tls_key,
                                                 ": cannot be used for HTTPS"));
}

// Settings for all requests of one server.
struct Access {
  bool tls = false;
  std::vector<std::string> names;
};

void Answer(const HttpHandler& handler, const Access& access, const httplib::Request& request,
            httplib::Response& response) {
  const bool tls = access.tls;
  HttpRequest asked{.path = request.path, .parameters = request.params, .headers = {}, .tls = tls};
  for (const auto& [name, value] : request.headers) {
    asked.headers.emplace(absl::AsciiStrToLower(name), value);
  }
  HttpResponse answer = RefusalOfSource(asked, access.names);
  if (request.get_header_value_count("Host") > 1) answer = {.code = 400, .body = "two Hosts\n"};
  if (answer.code == 200) answer = handler(asked);
  response.status = answer.code;
  for (const auto& [name, value] : answer.headers) response.set_header(name.c_str(), value);
  response.set_content(answer.body, answer.content_type);
}

}  // namespace

struct HttpServer::Impl {
  bool tls = false;
  Security security;
  std::unique_ptr<StreamServer> server;
  Endpoint bound;
  std::thread thread;
  Mutex mu;
  bool stopped ABSL_GUARDED_BY(mu) = false;
};

std::string CookieOf(const HttpRequest& request, absl::string_view name) {
  const auto cookies = request.headers.find("cookie");
  if (cookies == request.headers.end()) return "";
  for (absl::string_view cookie : absl::StrSplit(cookies->second, ';')) {
    cookie = absl::StripAsciiWhitespace(cookie);
    if (absl::ConsumePrefix(&cookie, name) && absl::ConsumePrefix(&cookie, "=")) {
      return std::string(cookie);
    }
  }
  return "";
}

std::string BearerTokenOf(const HttpRequest& request) {
  const auto header = request.headers.find("authorization");
  if (header == request.headers.end()) return "";
  absl::string_view token = header->second;
  return absl::ConsumePrefix(&token, "Bearer ") ? std::string(token) : "";
}

HttpHandler MetricsHandler(std::function<std::string()> scrape) {
  return [scrape = std::move(scrape)](const HttpRequest&) {
    return HttpResponse{.body = scrape(),
                        .content_type = "text/plain; version=0.0.4; charset=utf-8"};
  };
}

absl::StatusOr<std::optional<Endpoint>> ParseHttpEndpoint(absl::string_view text) {
  if (text.empty() || text == "off") return std::optional<Endpoint>();
  absl::StatusOr<Endpoint> endpoint = ParseEndpoint(text);
  if (!endpoint.ok()) return endpoint.status();
  if (endpoint->is_unix()) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", text, "': HTTP needs ADDR:PORT, or off"));
  }
  return std::optional<Endpoint>(*std::move(endpoint));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() { Stop(); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(HttpOptions options) {
  const Endpoint& listen = options.listen;
  if (listen.is_unix()) {
    return absl::InvalidArgumentError(absl::StrCat(listen.ToString(), ": HTTP needs ADDR:PORT"));
  }
  const bool tls = !IsLoopback(listen.host) && !options.security.insecure;
  if (tls && (options.security.tls_cert.empty() || options.security.tls_key.empty())) {
    return absl::FailedPreconditionError(
        absl::StrCat(listen.ToString(),
                     ": HTTP off loopback needs --tls-cert and --tls-key; use 127.0.0.1, or "
                     "--insecure to do without them"));
  }
  std::map<std::string, HttpHandler> routes = std::move(options.routes);
  routes.emplace("/healthz", [](const HttpRequest&) { return HttpResponse{.body = "ok\n"}; });
  routes.emplace("/readyz", [ready = options.ready](const HttpRequest&) {
    if (!ready || ready()) return HttpResponse{.body = "ok\n"};
    return HttpResponse{.code = 503, .body = "not ready\n"};
  });

  auto impl = std::make_unique<Impl>();
  impl->tls = tls;
  impl->security = options.security;
  TlsContext context;
  if (tls) {
    absl::StatusOr<TlsContext> made = MakeTlsContext(impl->security);
    if (!made.ok()) return made.status();
    context = *std::move(made);
  }
  impl->server = std::make_unique<StreamServer>(std::move(context), options.request_limit,
                                                options.crowded_limit);
  httplib::Server& server = *impl->server;
  server.set_socket_options(SetSocketOptions);
  server.set_payload_max_length(kMaxBodyBytes);
  server.set_tcp_nodelay(true);
  Access access{.tls = tls, .names = options.names};
  access.names.push_back(listen.host);
  for (const auto& [path, handler] : routes) {
    server.Get(path, [handler = handler, access](const httplib::Request& request,
                                                 httplib::Response& response) {
      Answer(handler, access, request, response);
    });
  }
  for (const auto& [path, handler] : options.posts) {
    server.Post(path, [handler = handler, access](const httplib::Request& request,
                                                  httplib::Response& response) {
      Answer(handler, access, request, response);
    });
  }
  server.set_exception_handler(
      [](const httplib::Request& request, httplib::Response& response, const std::exception_ptr&) {
        Log(kError, "http_handler_failed").Limit(request.path).Kv("path", request.path);
        response.status = 500;
        response.set_content("internal error\n", "text/plain; charset=utf-8");
      });

  int port = listen.port;
  if (port == 0) {
    port = server.bind_to_any_port(listen.host);
  } else if (!server.bind_to_port(listen.host, port)) {
    port = -1;
  }
  if (port <= 0) {
    if (absl::Status status = ProbeTcpBind(listen); !status.ok()) return status;
    return absl::FailedPreconditionError(
        absl::StrCat("listen on ", listen.ToString(), ": the address cannot be bound"));
  }
  impl->bound = listen;
  impl->bound.port = port;
  impl->thread = std::thread([&server] { server.listen_after_bind(); });
  // A stop() before the thread accepts would be lost.
  while (!server.is_running()) std::this_thread::yield();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

const Endpoint& HttpServer::endpoint() const { return impl_->bound; }

std::string HttpServer::url() const {
  Endpoint told = impl_->bound;
  if (told.host == "0.0.0.0" || told.host == "::") {
    char name[256] = {};
    if (::gethostname(name, sizeof(name) - 1) == 0) told.host = name;
  }
  return absl::StrCat(impl_->tls ? "https://" : "http://", told.ToString());
}

void HttpServer::Stop() {
  MutexLock lock(impl_->mu);
  if (impl_->stopped) return;
  impl_->stopped = true;
  impl_->server->Stop();
  impl_->thread.join();
}

}  // namespace capstan::services
