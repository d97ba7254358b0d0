#include "services/security/handshake.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/clock/clock.h"
#include "services/security/certificates.h"

namespace capstan::services {
namespace {

// The first bytes of an HTTP/2 client, with an empty SETTINGS frame.
constexpr absl::string_view kGreeting("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
constexpr char kTlsAlert = 0x15;
constexpr unsigned char kAlpn[] = {2, 'h', '2'};

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// False: none of `events` came by `until`.
bool WaitForFd(int fd, int16_t events, absl::Duration until) {
  while (true) {
    const absl::Duration left = std::max(absl::ZeroDuration(), until - MonotonicNow());
    pollfd waiting = {.fd = fd, .events = events, .revents = 0};
    const int got = poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    if (got > 0) return true;
    if (got == 0 || errno != EINTR) return false;
  }
}

struct Opened {
  FileDescriptor fd;
  Handshake failed;  // if there is no descriptor
};

Handshake Failed(int error, bool is_unix) {
  if (error == ECONNREFUSED) return {Met::kAbsent, "nothing listens there"};
  if (is_unix && (error == ENOENT || error == ENOTDIR)) {
    return {Met::kAbsent, "there is no such socket"};
  }
  if (error == ETIMEDOUT || error == EAGAIN || error == EINPROGRESS) {
    return {Met::kSilent, "no answer comes from there"};
  }
  return {is_unix ? Met::kAbsent : Met::kSilent, std::strerror(error)};
}

Opened ConnectTo(const sockaddr* address, socklen_t size, absl::Duration until) {
  const bool is_unix = address->sa_family == AF_UNIX;
  FileDescriptor fd(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return {FileDescriptor(), Failed(errno, is_unix)};
  int error = connect(fd.get(), address, size) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    socklen_t length = sizeof(error);
    if (WaitForFd(fd.get(), POLLOUT, until)) {
      getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    }
  }
  if (error != 0) return {FileDescriptor(), Failed(error, is_unix)};
  return {std::move(fd), {}};
}

Opened Open(const Endpoint& peer, absl::Duration until) {
  if (peer.is_unix()) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, peer.path.data(), std::min(peer.path.size(), kMaxUnixPathBytes));
    return ConnectTo(reinterpret_cast<const sockaddr*>(&address), sizeof(address), until);
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(peer.host.c_str(), absl::StrCat(peer.port).c_str(), &hints, &found);
  if (error != 0) {
    return {FileDescriptor(),
            {error == EAI_AGAIN ? Met::kSilent : Met::kAbsent,
             absl::StrCat("host ", peer.host, ": ", gai_strerror(error))}};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  Opened opened;
  opened.failed = {Met::kAbsent, "nothing listens there"};
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Opened next = ConnectTo(one->ai_addr, one->ai_addrlen, until);
    if (next.fd.get() >= 0) return next;
    if (next.failed.met != Met::kAbsent) opened.failed = next.failed;  // one may yet answer
  }
  return opened;
}

// How a step of the conversation ended.
enum class StepEnd { kDone, kClosed, kError, kTimedOut };
struct Step {
  StepEnd end = StepEnd::kTimedOut;
  std::string why;        // kError: OpenSSL's message
  bool is_alert = false;  // kError: the peer's verdict
};

bool SendAll(int fd, absl::string_view bytes, absl::Duration until) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if ((errno != EAGAIN && errno != EINTR) || !WaitForFd(fd, POLLOUT, until)) {
      return false;
    }
  }
  return true;
}

// Receives the next bytes. kDone: there are some.
Step Receive(int fd, absl::Duration until, std::string& bytes) {
  char buffer[4096];
  while (true) {
    const ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
    if (got > 0) {
      bytes.assign(buffer, static_cast<size_t>(got));
      return {StepEnd::kDone, "", false};
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) return {StepEnd::kClosed, "", false};
    if (!WaitForFd(fd, POLLIN, until)) return {StepEnd::kTimedOut, "", false};
  }
}

using TlsContext = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;

// One TLS connection on a socket, through buffers in memory, because OpenSSL's own socket I/O would
// raise SIGPIPE.
class TlsConversation {
 public:
  TlsConversation(SSL_CTX* context, int fd, const std::string& host, absl::Duration until)
      : fd_(fd), until_(until), ssl_(SSL_new(context), &SSL_free) {
    if (ssl_ == nullptr) return;
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl_.get(), in_, out_);  // ssl_ owns both from here on
    SSL_set_app_data(ssl_.get(), this);
    SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, &TlsConversation::Look);
    SSL_set_alpn_protos(ssl_.get(), kAlpn, sizeof(kAlpn));
    in6_addr address;
    if (inet_pton(AF_INET, host.c_str(), &address) != 1 &&
        inet_pton(AF_INET6, host.c_str(), &address) != 1) {
      SSL_set_tlsext_host_name(ssl_.get(), host.c_str());
    }
  }

  Step Connect() {
    return Drive([this] { return SSL_connect(ssl_.get()); });
  }
  // Waits for the server's first byte. A TLS 1.3 server judges our certificate after its own
  // handshake.
  Step Listen() {
    return Drive([this] {
      char byte = 0;
      return SSL_read(ssl_.get(), &byte, 1);
    });
  }

  // The first error of the chain; X509_V_OK if there is none.
  int chain_error() const { return chain_error_; }
  std::unique_ptr<X509, decltype(&X509_free)> Certificate() const {
    return {ssl_ == nullptr ? nullptr : SSL_get1_peer_certificate(ssl_.get()), &X509_free};
  }
  bool SpeaksHttp2() const {
    const unsigned char* chosen = nullptr;
    unsigned size = 0;
    SSL_get0_alpn_selected(ssl_.get(), &chosen, &size);
    return size == 2 && std::memcmp(chosen, "h2", 2) == 0;
  }

 private:
  // Always continues, because it only collects the errors.
  static int Look(int fine, X509_STORE_CTX* store) {
    const auto* ssl = static_cast<const SSL*>(
        X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
    auto* const self = static_cast<TlsConversation*>(SSL_get_app_data(ssl));
    if (fine == 0 && self->chain_error_ == X509_V_OK) {
      self->chain_error_ = X509_STORE_CTX_get_error(store);
    }
    return 1;
  }

  Step Drive(const std::function<int()>& step) {
    if (ssl_ == nullptr) return {StepEnd::kError, "OpenSSL has no memory", false};
    while (true) {
      ERR_clear_error();
      const int result = step();
      const int error = SSL_get_error(ssl_.get(), result);
      const uint64_t code = ERR_peek_error();
      ERR_clear_error();
      std::string bytes(static_cast<size_t>(BIO_pending(out_)), 0);
      if (!bytes.empty()) BIO_read(out_, bytes.data(), static_cast<int>(bytes.size()));
      const bool sent = SendAll(fd_, bytes, until_);
      if (result > 0) return {StepEnd::kDone, "", false};
      if (error == SSL_ERROR_SSL) {
        const char* const reason = ERR_reason_error_string(code);
        return {StepEnd::kError, reason == nullptr ? "an error of TLS" : reason,
                ERR_GET_REASON(code) >= SSL_AD_REASON_OFFSET};
      }
      if (error != SSL_ERROR_WANT_READ || !sent) return {StepEnd::kClosed, "", false};
      const Step came = Receive(fd_, until_, bytes);
      if (came.end != StepEnd::kDone) return came;
      BIO_write(in_, bytes.data(), static_cast<int>(bytes.size()));
    }
  }

  const int fd_;
  const absl::Duration until_;
  int chain_error_ = X509_V_OK;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
  BIO* in_ = nullptr;  // owned by ssl_
  BIO* out_ = nullptr;
};

int AskNobody(char*, int, int, void*) { return -1; }  // for the password of a key

TlsContext MakeContext(const Security& security) {
  TlsContext context(SSL_CTX_new(TLS_client_method()), &SSL_CTX_free);
  if (context == nullptr) return context;
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_default_passwd_cb(context.get(), AskNobody);
  // A process with a channel has these files. If one has disappeared meanwhile, the server reports
  // it.
  if (!security.tls_ca.empty()) {
    SSL_CTX_load_verify_locations(context.get(), security.tls_ca.c_str(), nullptr);
  }
  if (!security.tls_cert.empty()) {
    SSL_CTX_use_certificate_chain_file(context.get(), security.tls_cert.c_str());
    SSL_CTX_use_PrivateKey_file(context.get(), security.tls_key.c_str(), SSL_FILETYPE_PEM);
  }
  ERR_clear_error();
  return context;
}

std::string PemOf(X509* certificate) {
  const std::unique_ptr<BIO, decltype(&BIO_free_all)> out(BIO_new(BIO_s_mem()), &BIO_free_all);
  char* data = nullptr;
  if (out == nullptr || PEM_write_bio_X509(out.get(), certificate) != 1) return "";
  const auto size = BIO_get_mem_data(out.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

bool IsFor(X509* certificate, const std::string& host) {
  return X509_check_host(certificate, host.c_str(), host.size(), 0, nullptr) == 1 ||
         X509_check_ip_asc(certificate, host.c_str(), 0) == 1;
}

// Why a channel would refuse the certificate; empty if it would accept it.
std::string WhyRefused(const HandshakeOptions& options, X509* certificate, int chain_error) {
  const std::string pem = PemOf(certificate);
  const absl::StatusOr<Identity> identity = IdentityOf(pem);
  const std::string whose = identity.ok()
                                ? absl::StrCat("of ", RoleName(identity->role), " ", identity->name)
                                : "of nobody in Capstan";
  const absl::StatusOr<std::vector<std::string>> hosts = HostsOf(pem);
  const std::string names =
      hosts.ok() && !hosts->empty() ? absl::StrJoin(*hosts, ", ") : std::string("no host");
  const std::string& host = options.peer.host;
  if (chain_error != X509_V_OK) {
    std::string text = absl::StrCat("its certificate (", whose, ", for ", names,
                                    ") is refused: ", X509_verify_cert_error_string(chain_error));
    if (chain_error == X509_V_ERR_CERT_HAS_EXPIRED ||
        chain_error == X509_V_ERR_CERT_NOT_YET_VALID) {
      const absl::StatusOr<Validity> valid = ValidityOf(pem);
      if (valid.ok()) {
        absl::StrAppend(&text, "; it is valid from ",
                        absl::FormatTime(absl::RFC3339_sec, valid->from, absl::UTCTimeZone()),
                        " to ",
                        absl::FormatTime(absl::RFC3339_sec, valid->until, absl::UTCTimeZone()));
      }
    } else {
      absl::StrAppend(&text, "; is --tls-ca ", options.security.tls_ca,
                      " the ca.crt of this cluster?");
    }
    return text;
  }
  if (!IsFor(certificate, host)) {
    return absl::StrCat("its certificate (", whose, ") is for ", names, ", not for ", host,
                        "; reach it by one of its names, or issue it one with --host ", host);
  }
  const bool fits =
      identity.ok() && (options.role.has_value() ? identity->role == *options.role
                                                 : identity->role == Role::kCoordinator ||
                                                       identity->role == Role::kParamStore ||
                                                       identity->role == Role::kWorker);
  if (fits) return "";
  return absl::StrCat("its certificate is ", whose, ", not of a ",
                      options.role.has_value() ? RoleName(*options.role) : "service",
                      "; is this the right port?");
}

Handshake TryTls(const HandshakeOptions& options, int fd, absl::Duration until) {
  const TlsContext context = MakeContext(options.security);
  TlsConversation tls(context.get(), fd, options.peer.host, until);
  const Step connected = tls.Connect();
  if (connected.end == StepEnd::kTimedOut) {
    return {Met::kSilent, "it accepts the connection, but sends nothing"};
  }
  if (const auto certificate = tls.Certificate(); certificate != nullptr) {
    std::string why = WhyRefused(options, certificate.get(), tls.chain_error());
    if (!why.empty()) return {Met::kUnfit, std::move(why)};
  } else if (connected.end == StepEnd::kClosed) {
    return {Met::kSilent, "it closes the connection before it sends a certificate"};
  } else if (connected.is_alert) {
    return {Met::kUnfit, absl::StrCat("it ends the handshake: ", connected.why)};
  } else {
    return {Met::kUnfit, absl::StrCat("it does not speak TLS (", connected.why,
                                      "); is this its gRPC port, and was it started with "
                                      "--insecure?")};
  }
  const bool connects = connected.end == StepEnd::kDone;
  if (connects && !tls.SpeaksHttp2()) {
    return {Met::kUnfit, "it speaks TLS, but not gRPC; is this its HTTP port?"};
  }
  const Step heard = connects ? tls.Listen() : connected;
  if (heard.end == StepEnd::kDone) return {Met::kAnswers, ""};
  if (heard.end == StepEnd::kTimedOut) {
    return {Met::kSilent, "it completes the handshake, but sends nothing"};
  }
  const char* const said = heard.why.empty() ? "it closes the connection" : heard.why.c_str();
  return {Met::kUnfit,
          absl::StrCat("it does not accept our certificate --tls-cert ", options.security.tls_cert,
                       " (", said, "); is that signed by the cluster's authority, and valid?")};
}

// Whether a server that hung up on a plain greeting answers a TLS greeting.
bool SpeaksTls(const HandshakeOptions& options, absl::Duration until) {
  const Opened opened = Open(options.peer, until);
  if (opened.fd.get() < 0) return false;
  const TlsContext context = MakeContext({});
  TlsConversation tls(context.get(), opened.fd.get(), options.peer.host, until);
  const Step connected = tls.Connect();
  return connected.end == StepEnd::kDone || connected.is_alert || tls.Certificate() != nullptr;
}

Handshake TryPlain(const HandshakeOptions& options, int fd, absl::Duration until) {
  std::string bytes;
  const Step heard =
      SendAll(fd, kGreeting, until) ? Receive(fd, until, bytes) : Step{StepEnd::kClosed, "", false};
  if (heard.end == StepEnd::kTimedOut) {
    return {Met::kSilent, "it accepts the connection, but sends nothing"};
  }
  if (heard.end == StepEnd::kDone && absl::StartsWith(bytes, "HTTP/1")) {
    return {Met::kUnfit, "it speaks HTTP, not gRPC; is this its HTTP port?"};
  }
  const bool alert = !bytes.empty() && bytes[0] == kTlsAlert;
  if (heard.end == StepEnd::kDone && !alert) return {Met::kAnswers, ""};
  if (options.peer.is_unix()) return {Met::kUnfit, "it closes the connection"};
  if (alert || SpeaksTls(options, until)) {
    return {Met::kUnfit,
            "it speaks TLS; give --tls-ca, --tls-cert and --tls-key instead of --insecure"};
  }
  return {Met::kUnfit, "it closes the connection; is this its gRPC port?"};
}

}  // namespace

Handshake TryHandshake(const HandshakeOptions& options) {
  const absl::Duration until = MonotonicNow() + options.timeout;
  const Opened opened = Open(options.peer, until);
  if (opened.fd.get() < 0) return opened.failed;
  const bool plain = options.peer.is_unix() || options.security.insecure;
  return plain ? TryPlain(options, opened.fd.get(), until)
               : TryTls(options, opened.fd.get(), until);
}

}  // namespace capstan::services
