#include "services/server/acceptor.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "services/descriptors/descriptors.h"
#include "services/logging/log.h"

namespace capstan::services {
namespace {

constexpr int kRetryMs = 50;  // after an error of the system in accept

void Set(int fd, int level, int option, int value) {
  // None of these options is vital, and none fails on a TCP socket.
  (void)setsockopt(fd, level, option, &value, sizeof(value));
}

// Binds one address, with `port` instead of its own port, and listens there. Returns an errno, or
// 0.
int Bind(const addrinfo& address, int port, int* listener) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  Set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  sockaddr_storage at = {};
  std::memcpy(&at, address.ai_addr, address.ai_addrlen);
  if (address.ai_family == AF_INET6) {
    Set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);  // [::] accepts IPv4, too
    reinterpret_cast<sockaddr_in6*>(&at)->sin6_port = htons(static_cast<uint16_t>(port));
  } else {
    reinterpret_cast<sockaddr_in*>(&at)->sin_port = htons(static_cast<uint16_t>(port));
  }
  if (bind(fd, reinterpret_cast<sockaddr*>(&at), address.ai_addrlen) != 0 ||
      listen(fd, SOMAXCONN) != 0) {
    const int error = errno;
    close(fd);
    return error;
  }
  *listener = fd;
  return 0;
}

int PortOf(int fd) {
  sockaddr_storage at = {};
  socklen_t size = sizeof(at);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0) return 0;
  return ntohs(at.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&at)->sin6_port
                                        : reinterpret_cast<sockaddr_in*>(&at)->sin_port);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Listen(const Endpoint& endpoint) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int rc = getaddrinfo(endpoint.host.c_str(), nullptr, &hints, &found);
  if (rc != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen on ", endpoint.ToString(), ": ", gai_strerror(rc)));
  }
  std::unique_ptr<Acceptor> acceptor(new Acceptor());
  acceptor->port_ = endpoint.port;
  int error = 0;
  for (const addrinfo* it = found; it != nullptr && error == 0; it = it->ai_next) {
    if (it->ai_family != AF_INET && it->ai_family != AF_INET6) continue;
    int listener = -1;
    error = Bind(*it, acceptor->port_, &listener);
    if (error == EAFNOSUPPORT) {  // e.g. no IPv6 in this kernel
      error = 0;
      continue;
    }
    if (error != 0) break;
    acceptor->listeners_.push_back(listener);
    if (acceptor->port_ == 0) acceptor->port_ = PortOf(listener);
  }
  freeaddrinfo(found);
  if (error == 0 && acceptor->listeners_.empty()) error = EADDRNOTAVAIL;
  if (error == 0 && pipe2(acceptor->wake_, O_CLOEXEC) != 0) error = errno;
  if (error == 0) return acceptor;
  return absl::FailedPreconditionError(
      absl::StrCat("listen on ", endpoint.ToString(), ": ", std::strerror(error)));
}

Acceptor::~Acceptor() { Stop(); }

void Acceptor::Start(std::unique_ptr<Target> target, absl::Duration user_timeout) {
  target_ = std::move(target);
  const int user_timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(user_timeout));
  thread_ = std::thread([this, user_timeout_ms] { Run(user_timeout_ms); });
}

void Acceptor::Stop() {
  if (wake_[1] >= 0) close(wake_[1]);
  if (thread_.joinable()) thread_.join();
  if (wake_[0] >= 0) close(wake_[0]);
  for (const int listener : listeners_) close(listener);
  wake_[0] = wake_[1] = -1;
  listeners_.clear();
}

void Acceptor::Run(int user_timeout_ms) {
  std::vector<pollfd> polled;
  polled.push_back({wake_[0], POLLIN, 0});
  for (const int listener : listeners_) polled.push_back({listener, POLLIN, 0});
  for (;;) {
    if (poll(polled.data(), polled.size(), -1) < 0) continue;  // EINTR
    if (polled[0].revents != 0) return;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents != 0) Take(polled[i].fd, user_timeout_ms);
    }
  }
}

void Acceptor::Take(int listener, int user_timeout_ms) {
  const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
    // Mostly EMFILE: the owners of the descriptors release some, or the kernel's queue ends the
    // connections.
    Log(kWarning, "accept_failed").Limit("accept").Kv("error", std::strerror(errno));
    pollfd stopped = {wake_[0], POLLIN, 0};
    (void)poll(&stopped, 1, kRetryMs);
    return;
  }
  if (IsInReserve(fd)) {
    close(fd);
    Log(kWarning, "connection_refused")
        .Limit("descriptors")
        .Kv("open", fd)
        .Kv("limit", DescriptorLimit());
    return;
  }
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, user_timeout_ms);
  Target::NewConnectionParameters connection;
  connection.listener_fd = listener;
  connection.fd = fd;
  target_->HandleNewConnection(&connection);
}

}  // namespace capstan::services
