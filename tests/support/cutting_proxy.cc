#include "tests/support/cutting_proxy.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/files/files.h"
#include "services/sync/mutex.h"

namespace capstan::tests {
namespace {

constexpr int kAskEveryMs = 2;
constexpr absl::Duration kUsedWithin = absl::Seconds(20);

int UnixSocket(const std::string& path, bool listen_there) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return -1;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const auto* name = reinterpret_cast<const sockaddr*>(&address);
  const bool done = listen_there
                        ? bind(fd, name, sizeof(address)) == 0 && listen(fd, /*backlog=*/16) == 0
                        : connect(fd, name, sizeof(address)) == 0;
  if (done) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

bool PassOn(int fd, const char* bytes, ssize_t count) {
  while (count > 0) {
    const ssize_t sent = send(fd, bytes, static_cast<size_t>(count), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes += sent;
    count -= sent;
  }
  return true;
}

}  // namespace

struct CuttingProxy::Impl {
  void Run() {
    for (int connection = 0;; ++connection) {
      pollfd waits[] = {{stop, POLLIN, 0}, {listener, POLLIN, 0}};
      while (poll(waits, 2, -1) < 0 && errno == EINTR) continue;
      if (waits[0].revents != 0) return;
      const int client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      const int server = UnixSocket(target, /*listen_there=*/false);
      {
        MutexLock lock(mu);
        sent.push_back(0);
      }
      if (client >= 0 && server >= 0) Serve(client, server, connection < cuts.cuts);
      if (client >= 0) close(client);
      if (server >= 0) close(server);
    }
  }
  void Serve(int client, int server, bool cut) {
    std::vector<char> block(size_t{64} << 10);
    int64_t passed = 0;
    absl::Time deadline;
    for (;;) {
      const bool full = cut && passed >= cuts.bytes;
      if (full && (!cuts.used || cuts.used() || absl::Now() > deadline)) return;
      const int counted = cuts.of_server ? 2 : 1;
      pollfd waits[] = {{stop, POLLIN, 0}, {client, POLLIN, 0}, {server, POLLIN, 0}};
      if (full) waits[counted].events = 0;
      if (poll(waits, 3, full ? kAskEveryMs : -1) < 0) {
        if (errno == EINTR) continue;
        return;
      }
      if (waits[0].revents != 0) return;
      for (const auto& [from, to] : {std::pair(1, 2), std::pair(2, 1)}) {
        if (waits[from].revents == 0) continue;
        const ssize_t got = recv(waits[from].fd, block.data(), block.size(), 0);
        if (got <= 0 || !PassOn(waits[to].fd, block.data(), got)) return;
        if (from != counted) continue;
        passed += got;
        if (passed >= cuts.bytes) deadline = absl::Now() + kUsedWithin;
        MutexLock lock(mu);
        sent.back() = passed;
      }
    }
  }

  std::string target;
  Cuts cuts;
  int listener = -1;
  int stop = -1;  // an eventfd
  std::thread thread;
  mutable Mutex mu;
  std::vector<int64_t> sent ABSL_GUARDED_BY(mu);
};

absl::StatusOr<std::unique_ptr<CuttingProxy>> CuttingProxy::Start(const std::string& listen,
                                                                  const std::string& target,
                                                                  const Cuts& cuts) {
  auto impl = std::make_unique<Impl>();
  impl->target = target;
  impl->cuts = cuts;
  impl->listener = UnixSocket(listen, /*listen_there=*/true);
  if (impl->listener < 0) return services::ErrnoStatus(errno, "listen", listen);
  impl->stop = eventfd(0, EFD_CLOEXEC);
  if (impl->stop < 0) {
    close(impl->listener);
    return services::ErrnoStatus(errno, "eventfd", listen);
  }
  impl->thread = std::thread([impl = impl.get()] { impl->Run(); });
  return std::unique_ptr<CuttingProxy>(new CuttingProxy(std::move(impl)));
}

CuttingProxy::CuttingProxy(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

CuttingProxy::~CuttingProxy() {
  const uint64_t one = 1;
  (void)!write(impl_->stop, &one, sizeof(one));
  impl_->thread.join();
  close(impl_->listener);
  close(impl_->stop);
}

std::vector<int64_t> CuttingProxy::sent_bytes() const {
  MutexLock lock(impl_->mu);
  return impl_->sent;
}

}  // namespace capstan::tests
