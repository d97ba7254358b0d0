#include "services/http/http_stream.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/clock/clock.h"

namespace capstan::services {
namespace {

constexpr absl::Duration kSlice = absl::Milliseconds(50);  // patience is asked again after it
constexpr size_t kChunkBytes = 4096;

// The result of one attempt at a non-blocking socket. Sets the event to wait for if the attempt
// must be repeated.
ssize_t Attempted(ssize_t result, int event, int* events) {
  if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) *events = event;
  return result;
}

absl::string_view RefusalOfLength(absl::string_view value) {
  uint64_t length = 0;
  if (!absl::SimpleAtoi(value, &length)) return "400 Bad Request";
  return length <= kMaxBodyBytes ? "" : "413 Payload Too Large";
}

}  // namespace

absl::string_view RefusalOf(absl::string_view head) {
  const bool post = absl::StartsWith(head, "POST ");
  if (!post && !absl::StartsWith(head, "GET ") && !absl::StartsWith(head, "HEAD ")) {
    return "405 Method Not Allowed";
  }
  bool has_length = false;
  for (const absl::string_view line : absl::StrSplit(head, '\n')) {
    const std::pair<absl::string_view, absl::string_view> header =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    const absl::string_view value = absl::StripAsciiWhitespace(header.second);
    const auto is = [&](absl::string_view name) {
      return absl::EqualsIgnoreCase(header.first, name);
    };
    if (is("range")) return "416 Range Not Satisfiable";
    if (is("transfer-encoding")) return "411 Length Required";
    if (is("content-encoding")) return "415 Unsupported Media Type";
    if (!post) continue;
    if (is("content-type") &&
        !absl::StartsWithIgnoreCase(value, "application/x-www-form-urlencoded")) {
      return "415 Unsupported Media Type";
    }
    if (is("content-length")) {
      if (has_length) return "400 Bad Request";
      has_length = true;
      if (const absl::string_view refusal = RefusalOfLength(value); !refusal.empty()) {
        return refusal;
      }
    }
  }
  return post && !has_length ? "411 Length Required" : "";
}

HttpStream::HttpStream(int fd, SSL_CTX* tls, Patience patience)
    : fd_(fd), patience_(std::move(patience)), began_(MonotonicNow()) {
  (void)fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);  // cannot fail on a socket
  if (tls == nullptr) return;
  ssl_.reset(SSL_new(tls));
  broken_ = ssl_ == nullptr || SSL_set_fd(ssl_.get(), fd_) != 1;
  // SSL_read then returns after each record, even an empty one.
  if (!broken_) SSL_clear_mode(ssl_.get(), SSL_MODE_AUTO_RETRY);
}

HttpStream::~HttpStream() {
  if (ssl_ && !broken_) {
    ERR_clear_error();
    (void)SSL_shutdown(ssl_.get());  // sends our close; does not wait for the peer's
  }
  (void)::shutdown(fd_, SHUT_RDWR);
  (void)::close(fd_);
}

bool HttpStream::Open() {
  if (broken_ || !Shake()) return false;
  bool gone = false;
  const absl::string_view refusal = ReadHead(&gone);
  if (!refusal.empty()) Refuse(refusal);
  return refusal.empty() && !gone;
}

bool HttpStream::Shake() {
  if (!ssl_) return true;
  const ssize_t rc = Repeat([this](int* events) -> ssize_t {
    ERR_clear_error();
    const int done = SSL_accept(ssl_.get());
    if (done == 1) return 1;
    *events = EventsOf(done);
    return -1;
  });
  broken_ = rc != 1;
  return !broken_;
}

absl::string_view HttpStream::ReadHead(bool* gone) {
  size_t looked = 0;
  for (;;) {
    // httplib also takes this as the empty line. If it is split over two reads, the second one
    // finds it.
    const size_t end = buffer_.find("\n\r\n", looked - std::min<size_t>(looked, 2));
    if (end != std::string::npos) return RefusalOf(absl::string_view(buffer_).substr(0, end + 1));
    if (buffer_.size() >= kMaxHeadBytes) return "431 Request Header Fields Too Large";
    looked = buffer_.size();
    if (Fill() <= 0) {
      *gone = !late_;
      return late_ ? "408 Request Timeout" : "";
    }
  }
}

void HttpStream::Refuse(absl::string_view status) {
  const std::string answer =
      absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
  if (Send(answer.data(), answer.size()) < 0) return;
  if (ssl_) (void)SSL_shutdown(ssl_.get());
  (void)::shutdown(fd_, SHUT_WR);
  // Closing a connection with unread bytes resets it, and the answer may be lost.
  char unread[kChunkBytes];
  size_t drained = 0;
  while (drained < kMaxBodyBytes) {
    const ssize_t n = Repeat([&](int* events) {
      return Attempted(::recv(fd_, unread, sizeof(unread), 0), POLLIN, events);
    });
    if (n <= 0) return;
    drained += static_cast<size_t>(n);
  }
}

ssize_t HttpStream::read(char* to, size_t size) {
  if (given_ == buffer_.size()) {
    buffer_.clear();
    given_ = 0;
    if (const ssize_t n = Fill(); n <= 0) return n;
  }
  const size_t n = std::min(size, buffer_.size() - given_);
  std::memcpy(to, buffer_.data() + given_, n);
  given_ += n;
  return static_cast<ssize_t>(n);
}

ssize_t HttpStream::Fill() {
  if (broken_ || taken_ >= kMaxHeadBytes + kMaxBodyBytes) return -1;
  char chunk[kChunkBytes];
  const ssize_t n = Repeat([&](int* events) -> ssize_t {
    if (!ssl_) return Attempted(::recv(fd_, chunk, sizeof(chunk), 0), POLLIN, events);
    ERR_clear_error();
    const int got = SSL_read(ssl_.get(), chunk, sizeof(chunk));
    if (got > 0) return got;
    if (SSL_get_error(ssl_.get(), got) == SSL_ERROR_ZERO_RETURN) return 0;
    *events = EventsOf(got);
    return -1;
  });
  if (n <= 0) return n;
  buffer_.append(chunk, static_cast<size_t>(n));
  taken_ += static_cast<size_t>(n);
  return n;
}

ssize_t HttpStream::write(const char* from, size_t size) {
  if (!answering_) {  // the handler's time does not count
    answering_ = true;
    began_ = MonotonicNow();
  }
  return Send(from, size);
}

ssize_t HttpStream::Send(const char* from, size_t size) {
  if (broken_ || size == 0) return broken_ ? -1 : 0;
  return Repeat([&](int* events) -> ssize_t {
    if (!ssl_) return Attempted(::send(fd_, from, size, MSG_NOSIGNAL), POLLOUT, events);
    ERR_clear_error();
    size_t sent = 0;
    const int rc = SSL_write_ex(ssl_.get(), from, size, &sent);
    if (rc == 1) return static_cast<ssize_t>(sent);
    *events = EventsOf(rc);
    return -1;
  });
}

template <typename Attempt>
ssize_t HttpStream::Repeat(Attempt attempt) {
  for (;;) {
    int events = 0;
    const ssize_t n = attempt(&events);
    if (n >= 0) return n;
    if (events == 0 || !Await(events)) {
      late_ = events != 0;
      return -1;
    }
  }
}

bool HttpStream::Await(int events) {
  for (;;) {
    const absl::Duration left = began_ + patience_() - MonotonicNow();
    if (left <= absl::ZeroDuration()) return false;
    pollfd waited = {.fd = fd_, .events = static_cast<int16_t>(events), .revents = 0};
    const int timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(std::min(left, kSlice))) + 1;
    if (::poll(&waited, 1, timeout_ms) > 0) return true;
  }
}

int HttpStream::EventsOf(int rc) {
  switch (SSL_get_error(ssl_.get(), rc)) {
    case SSL_ERROR_WANT_READ:
      return POLLIN;
    case SSL_ERROR_WANT_WRITE:
      return POLLOUT;
    default:
      broken_ = true;
      return 0;
  }
}

// Nobody uses them; httplib puts them among the headers.
void HttpStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

void HttpStream::get_local_ip_and_port(std::string& ip, int& port) const {
  get_remote_ip_and_port(ip, port);
}

}  // namespace capstan::services
