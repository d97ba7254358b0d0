#include "exchange/shared/fd.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"

namespace capstan::exchange::shared {

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

absl::Status LastError(absl::string_view what) {
  const int error = errno;
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
}

absl::StatusOr<WakePair> MakeWakePair() {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
    return LastError("socketpair");
  }
  return WakePair{Fd(pair[0]), Fd(pair[1])};
}

// A buffer that is full wakes, too.
void Wake(const Fd& wake) {
  [[maybe_unused]] const ssize_t sent = send(wake.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool TakeWakes(const Fd& wait) {
  char bytes[256];
  const ssize_t taken = recv(wait.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  return taken > 0 || (taken < 0 && (errno == EAGAIN || errno == EINTR));
}

absl::Status SendFds(int socket, absl::string_view bytes, absl::Span<const int> fds) {
  CAPSTAN_CHECK(!bytes.empty() && fds.size() <= kMostFds);
  iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFds * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  const ssize_t sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(bytes.size()) ? absl::OkStatus() : LastError("sendmsg");
}

absl::StatusOr<Received> ReceiveFds(int socket) {
  char bytes[64];
  iovec part = {bytes, sizeof(bytes)};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostFds * sizeof(int))];
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t count = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
      return absl::NotFoundError("no message yet");
    }
    return LastError("recvmsg");
  }
  Received received;
  received.bytes.assign(bytes, static_cast<size_t>(count));
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t fds = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < fds; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      received.fds.emplace_back(fd);
    }
  }
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError("a message that is too long, or no descriptor is free");
  }
  return received;
}

absl::Status CheckSameUser(int socket) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return LastError("SO_PEERCRED");
  }
  if (peer.uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the process at the other end runs as user ",
                                                  peer.uid, ", this one as ", geteuid()));
}

}  // namespace capstan::exchange::shared
