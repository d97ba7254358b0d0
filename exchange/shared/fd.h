// A file descriptor that is closed with its owner, and how two processes of one host pass some over
// a Unix socket.
//
// Threads: an object from one thread at a time.
#ifndef CAPSTAN_EXCHANGE_SHARED_FD_H_
#define CAPSTAN_EXCHANGE_SHARED_FD_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace capstan::exchange::shared {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// What errno says about `what`, as Unavailable.
absl::Status LastError(absl::string_view what);

// A connected pair of sockets by which one process wakes another. One waits for `wait`, and `wake`
// goes to the process that wakes it. Neither can block the other side, or take its wake-ups.
struct WakePair {
  Fd wait, wake;
};
absl::StatusOr<WakePair> MakeWakePair();
// Never waits, and raises no signal, whatever the descriptor is.
void Wake(const Fd& wake);
// Takes what has come. False: the other side is gone, and `wait` stays readable.
bool TakeWakes(const Fd& wait);

// At most this many descriptors in one message.
inline constexpr int kMostFds = 2;

// Sends 1 byte or more with these descriptors as one message. Never waits.
absl::Status SendFds(int socket, absl::string_view bytes, absl::Span<const int> fds);

struct Received {
  std::string bytes;  // empty: the peer has closed the socket
  std::vector<Fd> fds;
};
// One message of at most 64 bytes. Never waits. NotFound: there is none yet.
absl::StatusOr<Received> ReceiveFds(int socket);

// PermissionDenied: another user runs the process at the other end.
absl::Status CheckSameUser(int socket);

}  // namespace capstan::exchange::shared

#endif  // CAPSTAN_EXCHANGE_SHARED_FD_H_
