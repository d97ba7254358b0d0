#include "client/launch/reach.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

namespace capstan::client {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Addresses> Resolve(const std::string& host, int port, int type) {
  addrinfo hints = {};
  hints.ai_socktype = type;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) return absl::NotFoundError(absl::StrCat(host, ": ", gai_strerror(error)));
  return Addresses(found, &freeaddrinfo);
}

}  // namespace

absl::StatusOr<std::string> AddressTowards(const std::string& host) {
  constexpr int kAnyPort = 9;  // nothing is sent there
  const absl::StatusOr<Addresses> addresses = Resolve(host, kAnyPort, SOCK_DGRAM);
  if (!addresses.ok()) return addresses.status();
  const addrinfo& peer = **addresses;
  const int fd = socket(peer.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  char text[NI_MAXHOST] = {};
  const bool done = fd >= 0 && connect(fd, peer.ai_addr, peer.ai_addrlen) == 0 &&
                    getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
                    getnameinfo(reinterpret_cast<const sockaddr*>(&own), size, text, sizeof(text),
                                nullptr, 0, NI_NUMERICHOST) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (!done) {
    return absl::UnavailableError(
        absl::StrCat("no way from here to ", host, ": ", std::strerror(error)));
  }
  return std::string(text);
}

Reach TryToReach(const services::Endpoint& endpoint, absl::Duration timeout) {
  const absl::StatusOr<Addresses> addresses = Resolve(endpoint.host, endpoint.port, SOCK_STREAM);
  if (!addresses.ok()) return Reach::kSilent;
  const addrinfo& peer = **addresses;
  const int fd = socket(peer.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Reach::kSilent;
  int error = connect(fd, peer.ai_addr, peer.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd waiting = {.fd = fd, .events = POLLOUT, .revents = 0};
    socklen_t size = sizeof(error);
    if (poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout))) == 1) {
      getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  close(fd);
  if (error == 0) return Reach::kThere;
  return error == ECONNREFUSED ? Reach::kRefused : Reach::kSilent;
}

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "?";
  std::string text = name;
  return text.substr(0, text.find('.'));
}

}  // namespace capstan::client
