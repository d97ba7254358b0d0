#include "services/http/http_server.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/clock/clock.h"
#include "services/files/files.h"
#include "services/metrics/registry.h"
#include "services/security/certificates.h"

namespace capstan::services {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr size_t kMiB = 1 << 20;

// A peer that sends arbitrary bytes: plaintext, or TLS that accepts any certificate.
class Stranger {
 public:
  explicit Stranger(int port, bool tls = false) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval limit = {.tv_sec = 30, .tv_usec = 0};
    EXPECT_EQ(setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    EXPECT_EQ(setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)), 0);
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    if (!tls) return;
    context_.reset(SSL_CTX_new(TLS_client_method()));
    ssl_.reset(SSL_new(context_.get()));
    EXPECT_EQ(SSL_set_fd(ssl_.get(), fd_), 1);
    EXPECT_EQ(SSL_connect(ssl_.get()), 1);
  }
  ~Stranger() {
    if (thread_.joinable()) {
      ::shutdown(fd_, SHUT_RDWR);
      thread_.join();
    }
    ::close(fd_);
  }

  // False: the server has closed the connection.
  bool Send(absl::string_view text) {
    while (!text.empty()) {
      const ssize_t n = ssl_ ? SSL_write(ssl_.get(), text.data(), static_cast<int>(text.size()))
                             : ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      text.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // Sends until the server closes or `most_bytes` are sent. Returns how many bytes it took.
  size_t SendWithoutEnd(absl::string_view part, size_t most_bytes) {
    size_t sent = 0;
    while (sent < most_bytes && Send(part)) sent += part.size();
    return sent;
  }
  // Everything that the server sends until it closes.
  std::string Answer() {
    std::string answer;
    char part[4096];
    for (;;) {
      const ssize_t n =
          ssl_ ? SSL_read(ssl_.get(), part, sizeof(part)) : ::recv(fd_, part, sizeof(part), 0);
      if (n <= 0) return answer;
      answer.append(part, static_cast<size_t>(n));
    }
  }
  // Every 100 ms, until the server closes or this object is destroyed, sends a byte, or reads some.
  void Trickle() {
    Repeat([this] { return Send("a"); });
  }
  void Sip() {
    Repeat([this] {
      std::string part(32 * 1024, ' ');
      return ::recv(fd_, part.data(), part.size(), 0) > 0;
    });
  }

 private:
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  void Repeat(std::function<bool()> act) {
    thread_ = std::thread([this, act = std::move(act)] {
      pollfd closed = {.fd = fd_, .events = POLLRDHUP, .revents = 0};
      while (act() && ::poll(&closed, 1, /*timeout=*/100) == 0) {
      }
    });
  }

  const int fd_;
  std::unique_ptr<SSL_CTX, Free> context_;
  std::unique_ptr<SSL, Free> ssl_;
  std::thread thread_;
};

std::string Ask(const HttpServer& server, absl::string_view request, bool tls = false) {
  Stranger stranger(server.endpoint().port, tls);
  stranger.Send(request);
  return stranger.Answer();
}

// Returns once the server has served this request, and all earlier connections in their order.
void AwaitTurn(const HttpServer& server, bool tls = false) {
  EXPECT_THAT(Ask(server, "GET /healthz HTTP/1.1\r\n\r\n", tls), StartsWith("HTTP/1.1 200"));
}

size_t PeakMemoryBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    size_t kibibytes = 0;
    absl::string_view rest = line;
    if (absl::ConsumePrefix(&rest, "VmHWM:") && absl::ConsumeSuffix(&rest, "kB") &&
        absl::SimpleAtoi(rest, &kibibytes)) {
      return kibibytes * 1024;
    }
  }
  ADD_FAILURE() << "no VmHWM";
  return 0;
}

// A folder with an authority and a certificate for 127.0.0.1, for TLS on every address.
class Papers {
 public:
  Papers() : folder_(*MakePrivateDir("capstan-http")) {
    options_.listen = *ParseEndpoint("0.0.0.0:0");
    options_.security.tls_cert = folder_ + "/c";
    options_.security.tls_key = folder_ + "/k";
    EXPECT_TRUE(WriteFileAtomically(authority_file(), authority_.certificate).ok());
  }
  ~Papers() { std::filesystem::remove_all(folder_); }

  void Issue(const std::string& host) {
    const KeyPair pair = *IssueCertificate(authority_, {.identity = {Role::kWorker, "a"},
                                                        .hosts = {host},
                                                        .now = absl::Now(),
                                                        .lifetime = absl::Hours(1)});
    EXPECT_TRUE(WriteFileAtomically(options_.security.tls_cert, pair.certificate).ok());
    EXPECT_TRUE(WriteFileAtomically(options_.security.tls_key, pair.key).ok());
  }
  std::string authority_file() const { return folder_ + "/ca"; }
  const HttpOptions& options() const { return options_; }

 private:
  const std::string folder_;
  const KeyPair authority_ = *MakeAuthority("test", absl::Now(), absl::Hours(1));
  HttpOptions options_;
};

TEST(HttpRequestTest, WhatACallerSendsToSayWhoItIs) {
  HttpRequest request;
  EXPECT_EQ(CookieOf(request, "token"), "");
  EXPECT_EQ(BearerTokenOf(request), "");
  request.headers["authorization"] = "bearer x";
  EXPECT_EQ(BearerTokenOf(request), "");
  request.headers["authorization"] = "Bearer a b";
  EXPECT_EQ(BearerTokenOf(request), "a b");
  for (const auto& [header, value] :
       std::map<std::string, std::string>{{"token=a", "a"},
                                          {"x=1;token=a=b ; token=c", "a=b"},
                                          {"tokens=a; token=b", "b"},
                                          {"xtoken=a", ""},
                                          {"token", ""},
                                          {";;= ;token=", ""}}) {
    request.headers["cookie"] = header;
    EXPECT_EQ(CookieOf(request, "token"), value) << header;
  }
}

TEST(HttpServerTest, ServesMetricsHealthReadinessAndOwnRoutes) {
  MetricsRegistry metrics("coordinator");
  std::atomic<bool> ready{false};
  HttpOptions options;
  options.routes["/metrics"] = MetricsHandler([&metrics] { return metrics.Scrape(); });
  options.ready = [&ready] { return ready.load(); };
  options.routes["/sd"] = [](const HttpRequest& request) {
    const auto it = request.parameters.find("component");
    return HttpResponse{.body = it == request.parameters.end() ? "none" : it->second,
                        .content_type = "application/json"};
  };
  options.posts["/form"] = [](const HttpRequest& request) {
    return HttpResponse{.code = 303,
                        .body = absl::StrCat(request.parameters.find("token")->second, "/",
                                             request.headers.at("cookie"), "/", request.tls),
                        .headers = {{"Set-Cookie", "a=b; HttpOnly"}}};
  };
  options.routes["/throws"] = [](const HttpRequest&) -> HttpResponse {
    throw std::runtime_error("bug");
  };
  auto server = HttpServer::Start(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_GT((*server)->endpoint().port, 0);
  httplib::Client client("127.0.0.1", (*server)->endpoint().port);

  auto result = client.Get("/metrics");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 200);
  EXPECT_THAT(result->body, HasSubstr("capstan_build_info{component=\"coordinator\""));
  EXPECT_THAT(result->get_header_value("Content-Type"), HasSubstr("version=0.0.4"));
  EXPECT_EQ(client.Get("/healthz")->status, 200);
  EXPECT_EQ(client.Get("/readyz")->status, 503);
  ready = true;
  EXPECT_EQ(client.Get("/readyz")->body, "ok\n");
  EXPECT_EQ(client.Get("/sd?component=gpu%20worker")->body, "gpu worker");
  EXPECT_EQ(client.Get("/throws")->status, 500);
  EXPECT_EQ(client.Get("/no/such")->status, 404);
  EXPECT_EQ(client.Post("/healthz")->status, 404);
  EXPECT_EQ(client.Get("/form")->status, 404);
  result =
      client.Post("/form", {{"Cookie", "x=y"}}, "token=a%2Bb", "application/x-www-form-urlencoded");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 303);
  EXPECT_EQ(result->body, "a+b/x=y/0");
  EXPECT_EQ(result->get_header_value("Set-Cookie"), "a=b; HttpOnly");
}

TEST(HttpServerTest, AForeignNameOrPageGetsNothing) {
  std::atomic<int> asked{0};
  HttpOptions options;
  options.names = {"page.example.com"};
  options.routes["/metrics"] = MetricsHandler([] { return std::string("secret"); });
  options.routes["/"] = options.posts["/login"] = [&asked](const HttpRequest&) {
    ++asked;
    return HttpResponse{.body = "secret"};
  };
  auto server = HttpServer::Start(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->endpoint().port;
  httplib::Client client("127.0.0.1", port);
  for (const char* path : {"/", "/metrics", "/readyz"}) {
    const auto result = client.Get(path, {{"Host", absl::StrCat("evil.com:", port)}});
    ASSERT_TRUE(result);
    EXPECT_EQ(result->status, 421) << path;
    EXPECT_THAT(result->body, Not(HasSubstr("secret")));
    EXPECT_EQ(client.Get(path, {{"Host", "page.example.com"}})->status, 200) << path;
  }
  const std::string form = "application/x-www-form-urlencoded";
  const std::string own = absl::StrCat("http://127.0.0.1:", port);
  EXPECT_EQ(client.Post("/login", {{"Origin", "http://evil.com"}}, "a=b", form.c_str())->status,
            403);
  EXPECT_EQ(client.Post("/login", {{"Origin", "null"}}, "a=b", form.c_str())->status, 403);
  EXPECT_EQ(asked, 1);  // sent by the server's own page
  EXPECT_EQ(client.Post("/login", {{"Origin", own}}, "a=b", form.c_str())->status, 200);
}

TEST(HttpServerTest, SecondStartOnOnePortNamesTheAddress) {
  auto first = HttpServer::Start({});
  ASSERT_TRUE(first.ok()) << first.status();
  HttpOptions same;
  same.listen = (*first)->endpoint();
  EXPECT_EQ(HttpServer::Start(same).status().message(),
            absl::StrCat("listen on ", same.listen.ToString(), ": Address already in use"));
  (*first)->Stop();
  (*first)->Stop();
  const auto again = HttpServer::Start(same);
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST(HttpServerTest, OffLoopbackItIsTlsWithTheCertificateThatLiesThere) {
  Papers papers;
  EXPECT_EQ(HttpServer::Start(papers.options()).status().code(),
            absl::StatusCode::kInvalidArgument);
  papers.Issue("127.0.0.1");
  const auto server = HttpServer::Start(papers.options());
  ASSERT_TRUE(server.ok()) << server.status();
  const auto get = [&](const std::string& host) {
    httplib::SSLClient client(host, (*server)->endpoint().port);
    client.set_ca_cert_path(papers.authority_file().c_str());
    const auto result = client.Get("/healthz");
    return result ? result->status : 0;
  };
  EXPECT_EQ(get("127.0.0.1"), 200);
  httplib::Client plain("127.0.0.1", (*server)->endpoint().port);
  EXPECT_FALSE(plain.Get("/healthz"));
  papers.Issue("10.1.2.3");
  EXPECT_EQ(get("127.0.0.1"), 0);
  papers.Issue("127.0.0.1");
  EXPECT_EQ(get("127.0.0.1"), 200);
}

TEST(HttpServerTest, OffLoopbackNeedsACertificateOrInsecure) {
  HttpOptions options;
  options.listen = *ParseEndpoint("0.0.0.0:0");
  EXPECT_EQ(HttpServer::Start(options).status().code(), absl::StatusCode::kFailedPrecondition);
  options.security.insecure = true;
  EXPECT_TRUE(HttpServer::Start(options).ok());
}

// A request without an end, or one that would be unpacked or repeated, is refused because of its
// head.
TEST(HttpServerTest, RequestsThatCouldGrowAreRefused) {
  HttpOptions options;
  options.posts["/form"] = [](const HttpRequest& request) {
    return HttpResponse{.body = absl::StrCat(request.parameters.size(), " parameters\n")};
  };
  const auto server = HttpServer::Start(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string form = "Content-Type: application/x-www-form-urlencoded\r\n";
  for (const auto& [head, status] : std::vector<std::pair<std::string, std::string>>{
           {"GET /healthz HTTP/1.1\r\n", "200"},
           {"HEAD /healthz HTTP/1.0\r\nX-Range: a\r\n", "200"},
           {"GET /healthz HTTP/1.1\r\nRange: bytes=0-1\r\n", "416"},
           {"GET /healthz HTTP/1.1\r\nX: y\nrange:bytes=0-\r\n", "416"},
           {"GET /healthz HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", "411"},
           {"PUT /form HTTP/1.1\r\nContent-Length: 0\r\n", "405"},
           {"DELETE /form HTTP/1.1\r\n", "405"},
           {"PRI * HTTP/2.0\r\n", "405"},
           {" \r\n", "405"},
           {"GET /healthz\r\n", "400"},
           {"GET /healthz HTTP/1.1\r\nX: " + std::string(8200, 'x') + "\r\n", "400"},
           {"GET /healthz HTTP/1.1\r\nX: " + std::string(40000, 'x') + "\r\n", "431"},
           {"POST /form HTTP/1.1\r\n" + form, "411"},
           {"POST /form HTTP/1.1\r\nContent-Length: 0\r\nTransfer-encoding: x\r\n", "411"},
           {"POST /form HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 0\r\n", "400"},
           {"POST /form HTTP/1.1\r\nContent-Length: -1\r\n", "400"},
           {"POST /form HTTP/1.1\r\nContent-Length: 0x1\r\n", "400"},
           {"POST /form HTTP/1.1\r\nContent-Length: %31\r\n", "400"},
           {"POST /form HTTP/1.1\r\nContent-Length: 65537\r\n", "413"},
           {"POST /form HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n", "400"},
           {"POST /form HTTP/1.1\r\nContent-Length: 0\r\nContent-Encoding: br\r\n", "415"},
           {"POST /form HTTP/1.1\r\nContent-Length: 0\r\n"
            "Content-Type: multipart/form-data; boundary=a\r\n",
            "415"},
           {"POST /form HTTP/1.1\r\nContent-Length: 0\r\n" + form, "200"},
           {"POST /no HTTP/1.1\r\nContent-Length: 0\r\n", "404"},
       }) {
    EXPECT_THAT(Ask(**server, head + "\r\n"), StartsWith(absl::StrCat("HTTP/1.1 ", status, " ")))
        << head.substr(0, 200);
  }
  EXPECT_THAT(Ask(**server, absl::StrCat("POST /form HTTP/1.1\r\nContent-Length: 7\r\n", form,
                                         "\r\na=1&b=2")),
              ::testing::EndsWith("2 parameters\n"));
}

TEST(HttpServerTest, WhatHasNoEndIsNotKept) {
  const auto server = HttpServer::Start({});
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->endpoint().port;
  const std::string part(64 * 1024, 'x');
  std::string headers;
  while (headers.size() < part.size()) headers += "a: b\r\n";
  const size_t before = PeakMemoryBytes();
  for (const auto& [begin, endless, status] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            absl::StrCat("10000\r\n", part, "\r\n"), "411"},
           {"POST /a HTTP/1.1\r\n\r\n", part, "411"},
           {"GET /", part, "431"},
           {"GET / HTTP/1.1\r\nX: ", part, "431"},
           {"GET / HTTP/1.1\r\n", headers, "431"},
           // httplib does not take this as a header and reads on.
           {"POST /a HTTP/1.1\r\nContent-Length: 5\n\r\n", part, "400"},
       }) {
    Stranger stranger(port);
    ASSERT_TRUE(stranger.Send(begin));
    EXPECT_LT(stranger.SendWithoutEnd(endless, 64 * kMiB), 64 * kMiB) << begin;
    EXPECT_THAT(stranger.Answer(), StartsWith("HTTP/1.1 " + status)) << begin;
  }
  EXPECT_LT(PeakMemoryBytes() - before, 24 * kMiB);
}

TEST(HttpServerTest, APageIsNotRepeatedForItsRanges) {
  HttpOptions options;
  options.routes["/metrics"] = MetricsHandler([] { return std::string(64 * 1024, 'm'); });
  const auto server = HttpServer::Start(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  std::string ranges = "bytes=0-";
  while (ranges.size() < 8000) ranges += ",0-";
  const size_t before = PeakMemoryBytes();
  const std::string answer =
      Ask(**server, absl::StrCat("GET /metrics HTTP/1.1\r\nRange: ", ranges, "\r\n\r\n"));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 416"));
  EXPECT_LT(answer.size(), 1024);
  EXPECT_LT(PeakMemoryBytes() - before, 24 * kMiB);
}

TEST(HttpServerTest, ARequestHasATimeForAllOfIt) {
  HttpOptions options;
  options.request_limit = absl::Milliseconds(500);
  const auto server = HttpServer::Start(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  Stranger head((*server)->endpoint().port);
  head.Send("GET /");
  head.Trickle();
  EXPECT_THAT(head.Answer(), StartsWith("HTTP/1.1 408"));
  Stranger body((*server)->endpoint().port);
  body.Send("POST /a HTTP/1.1\r\nContent-Length: 60000\r\n\r\n");
  body.Trickle();
  EXPECT_THAT(body.Answer(), StartsWith("HTTP/1.1 400"));
}

TEST(HttpServerTest, AnAnswerHasATimeForAllOfIt) {
  HttpOptions options;
  options.request_limit = absl::Milliseconds(500);
  options.routes["/metrics"] = MetricsHandler([] { return std::string(16 * kMiB, 'm'); });
  const auto server = HttpServer::Start(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<std::unique_ptr<Stranger>> slow;
  for (int i = 0; i < 4; ++i) {
    slow.push_back(std::make_unique<Stranger>((*server)->endpoint().port));
    slow.back()->Send("GET /metrics HTTP/1.1\r\n\r\n");
    slow.back()->Sip();
  }
  AwaitTurn(**server);
}

TEST(HttpServerTest, ALargePageArrivesWhole) {
  Papers papers;
  papers.Issue("127.0.0.1");
  for (const bool tls : {false, true}) {
    HttpOptions options = tls ? papers.options() : HttpOptions();
    options.routes["/metrics"] = MetricsHandler([] { return std::string(8 * kMiB, 'm'); });
    const auto server = HttpServer::Start(std::move(options));
    ASSERT_TRUE(server.ok()) << server.status();
    const std::string answer = Ask(**server, "GET /metrics HTTP/1.1\r\n\r\n", tls);
    EXPECT_THAT(answer.substr(0, 20), StartsWith("HTTP/1.1 200"));
    EXPECT_EQ(answer.size() - answer.find("\r\n\r\n") - 4, 8 * kMiB) << tls;
  }
}

// There are more of them than are accepted at a time.
TEST(HttpServerTest, OthersAreServedWhileSomeSendAByteNowAndThen) {
  HttpOptions options;
  options.request_limit = absl::InfiniteDuration();
  options.crowded_limit = absl::Milliseconds(200);
  const auto server = HttpServer::Start(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 20; ++i) {
    strangers.push_back(std::make_unique<Stranger>((*server)->endpoint().port));
    strangers.back()->Send("GET /");
    strangers.back()->Trickle();
  }
  AwaitTurn(**server);
}

TEST(HttpServerTest, OverTlsTooOthersAreServedMeanwhile) {
  Papers papers;
  papers.Issue("127.0.0.1");
  HttpOptions options = papers.options();
  options.request_limit = absl::InfiniteDuration();
  options.crowded_limit = absl::Seconds(1);
  const auto server = HttpServer::Start(std::move(options));
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->endpoint().port;
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 2; ++i) {
    strangers.push_back(std::make_unique<Stranger>(port, /*tls=*/true));
    strangers.back()->Send("GET /");
    strangers.push_back(std::make_unique<Stranger>(port));
    strangers.back()->Send(absl::string_view("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11));
  }
  for (const auto& stranger : strangers) stranger->Trickle();
  AwaitTurn(**server, /*tls=*/true);
}

TEST(HttpServerTest, StopCutsOffWhoIsStillSending) {
  Papers papers;
  papers.Issue("127.0.0.1");
  for (const bool tls : {false, true}) {
    for (const int count : {1, 20}) {
      HttpOptions options = tls ? papers.options() : HttpOptions();
      options.request_limit = absl::InfiniteDuration();
      options.crowded_limit = absl::InfiniteDuration();
      const auto server = HttpServer::Start(std::move(options));
      ASSERT_TRUE(server.ok()) << server.status();
      std::vector<std::unique_ptr<Stranger>> strangers;
      for (int i = 0; i < count; ++i) {
        // Connections after the fourth are not answered, so they cannot do a handshake.
        strangers.push_back(std::make_unique<Stranger>((*server)->endpoint().port, tls && i < 4));
        strangers.back()->Send("GET /");
        strangers.back()->Trickle();
      }
      if (count == 1) AwaitTurn(**server, tls);
      const absl::Duration begin = MonotonicNow();
      (*server)->Stop();
      EXPECT_LT(MonotonicNow() - begin, absl::Seconds(5)) << tls << ", " << count;
    }
  }
}

TEST(HttpServerTest, EndpointMayBeOff) {
  EXPECT_FALSE(ParseHttpEndpoint("off")->has_value());
  EXPECT_FALSE(ParseHttpEndpoint("")->has_value());
  EXPECT_EQ((*ParseHttpEndpoint("127.0.0.1:7071"))->port, 7071);
  EXPECT_EQ(ParseHttpEndpoint("unix:/a").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(ParseHttpEndpoint("7071").ok());
}

}  // namespace
}  // namespace capstan::services
