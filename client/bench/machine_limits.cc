#include "client/bench/machine_limits.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/clock/clock.h"
#include "services/files/files.h"

namespace capstan::client {
namespace {

constexpr int kTries = 3;
constexpr size_t kWrite = size_t{1} << 20;
constexpr size_t kBytes = size_t{1} << 26;  // of a try

using Pair = std::pair<int, int>;  // two ends of a connection; the caller closes both

absl::StatusOr<Pair> UnixPair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return services::ErrnoStatus(errno, "socketpair", "AF_UNIX");
  }
  return Pair(ends[0], ends[1]);
}

absl::StatusOr<Pair> TcpPair() {
  const auto failed = [](absl::string_view call) {
    return services::ErrnoStatus(errno, call, "127.0.0.1");
  };
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0) return failed("socket");
  const absl::Cleanup close_listener = [listener] { close(listener); };
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, generic, size) != 0) return failed("bind");
  if (listen(listener, 1) != 0) return failed("listen");
  if (getsockname(listener, generic, &size) != 0) return failed("getsockname");
  const int from = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (from < 0) return failed("socket");
  absl::Cleanup close_from = [from] { close(from); };
  if (connect(from, generic, size) != 0) return failed("connect");
  const int to = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (to < 0) return failed("accept");
  std::move(close_from).Cancel();
  return Pair(from, to);
}

// Reads until the writer is done. An end that breaks wakes the other one.
absl::StatusOr<absl::Duration> Transfer(const Pair& ends, std::vector<char>& out,
                                        std::vector<char>& in) {
  const absl::Duration began = MonotonicNow();
  std::thread writer([&] {
    for (size_t sent = 0; sent < kBytes;) {
      const ssize_t count =
          send(ends.first, out.data(), std::min(kWrite, kBytes - sent), MSG_NOSIGNAL);
      if (count <= 0 && errno != EINTR) break;
      if (count > 0) sent += static_cast<size_t>(count);
    }
    shutdown(ends.first, SHUT_WR);
  });
  size_t received = 0;
  int error = 0;
  for (;;) {
    const ssize_t count = recv(ends.second, in.data(), kWrite, 0);
    if (count == 0) break;
    if (count > 0) received += static_cast<size_t>(count);
    if (count < 0 && errno != EINTR) {
      error = errno;
      shutdown(ends.second, SHUT_RDWR);
      break;
    }
  }
  writer.join();
  if (received < kBytes) return services::ErrnoStatus(error, "recv", "a local connection");
  return MonotonicNow() - began;
}

absl::StatusOr<double> SocketSpeed(const std::function<absl::StatusOr<Pair>()>& connect_ends) {
  std::vector<char> out(kWrite, 1);
  std::vector<char> in(kWrite);
  double best = 0;
  for (int i = 0; i < kTries; ++i) {
    const absl::StatusOr<Pair> ends = connect_ends();
    if (!ends.ok()) return ends.status();
    const absl::Cleanup close_ends = [&ends] {
      close(ends->first);
      close(ends->second);
    };
    const absl::StatusOr<absl::Duration> time = Transfer(*ends, out, in);
    if (!time.ok()) return time.status();
    best = std::max(best, kBytes / absl::ToDoubleSeconds(*time));
  }
  return best;
}

double CopySpeed() {
  std::vector<char> from(kBytes, 1);
  std::vector<char> to(kBytes, 2);
  double best = 0;
  for (int i = 0; i < kTries; ++i) {
    const absl::Duration began = MonotonicNow();
    std::memcpy(to.data(), from.data(), kBytes);
    best = std::max(best, kBytes / absl::ToDoubleSeconds(MonotonicNow() - began));
    from[static_cast<size_t>(i)] = to.back();  // the copy cannot be left out
  }
  return best;
}

}  // namespace

absl::StatusOr<MachineLimits> MeasureMachine() {
  MachineLimits limits;
  limits.copy = CopySpeed();
  const absl::StatusOr<double> unix_socket = SocketSpeed(UnixPair);
  if (!unix_socket.ok()) return unix_socket.status();
  limits.unix_socket = *unix_socket;
  const absl::StatusOr<double> tcp = SocketSpeed(TcpPair);
  if (!tcp.ok()) return tcp.status();
  limits.tcp = *tcp;
  return limits;
}

}  // namespace capstan::client
