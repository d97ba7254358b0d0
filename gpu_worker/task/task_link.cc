#include "gpu_worker/task/task_link.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "services/files/files.h"

namespace capstan::gpu_worker {

constexpr size_t kHeaderBytes = 5;

absl::StatusOr<SocketPair> MakeSocketPair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    return services::ErrnoStatus(errno, "socketpair", "task");
  }
  return SocketPair{fds[0], fds[1]};
}

TaskLink::TaskLink(int fd, Handler on_message, std::function<void()> on_closed,
                   absl::Duration patience)
    : fd_(fd),
      on_message_(std::move(on_message)),
      on_closed_(std::move(on_closed)),
      reader_([this] {
        Read();
        if (!closing_.load()) on_closed_();
      }) {
  const timeval timeout = absl::ToTimeval(patience);
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
}

TaskLink::~TaskLink() {
  closing_.store(true);
  shutdown(fd_, SHUT_RDWR);
  reader_.join();
  close(fd_);
}

absl::Status TaskLink::Send(LinkKind kind, absl::string_view body) {
  return Write(kind, body, /*may_drop=*/false);
}

absl::Status TaskLink::Offer(LinkKind kind, absl::string_view body) {
  return Write(kind, body, /*may_drop=*/true);
}

absl::Status TaskLink::Write(LinkKind kind, absl::string_view body, bool may_drop) {
  CAPSTAN_CHECK(body.size() < kMaxLinkBytes);
  std::string message(kHeaderBytes, '\0');
  const uint32_t length = static_cast<uint32_t>(body.size()) + 1;
  std::memcpy(message.data(), &length, sizeof(length));
  message[4] = static_cast<char>(kind);
  message.append(body.data(), body.size());
  MutexLock lock(mu_);
  size_t sent = 0;
  while (!broken_ && sent < message.size()) {
    const bool droppable = may_drop && sent == 0;  // after the first bytes the rest must follow
    const ssize_t n = send(fd_, message.data() + sent, message.size() - sent,
                           MSG_NOSIGNAL | (droppable ? MSG_DONTWAIT : 0));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && droppable && errno == EAGAIN) {
      return absl::ResourceExhaustedError("the task's link is full");
    }
    if (n < 0) {
      // Half a message may have been sent. Nothing sensible can follow, and both sides must notice
      // that.
      broken_ = true;
      shutdown(fd_, SHUT_RDWR);
    }
    if (n > 0) sent += static_cast<size_t>(n);
  }
  if (broken_) return absl::UnavailableError("the other side of the task's link is gone");
  return absl::OkStatus();
}

bool TaskLink::ReadBytes(char* to, size_t size) {
  while (size > 0) {
    const ssize_t n = recv(fd_, to, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

void TaskLink::Read() {
  std::string body;
  for (;;) {
    char header[kHeaderBytes];
    if (!ReadBytes(header, sizeof(header))) return;
    uint32_t length;
    std::memcpy(&length, header, sizeof(length));
    if (length < 1 || length > kMaxLinkBytes) return;
    body.resize(length - 1);
    if (!ReadBytes(body.data(), body.size())) return;
    on_message_(static_cast<LinkKind>(header[4]), body);
  }
}

}  // namespace capstan::gpu_worker
