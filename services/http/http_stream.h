// One connection of an HttpServer, plaintext or TLS, as httplib reads and writes it.
//
// httplib limits each read and the announced lengths. So a client that sends a byte now and then,
// or a line or a body without end, or that asks for one page a thousand times, could occupy it for
// long. This stream reads the whole head of the request first, refuses endless requests, and limits
// the time of the request and of its answer.
//
// For one thread.
#ifndef CAPSTAN_SERVICES_HTTP_HTTP_STREAM_H_
#define CAPSTAN_SERVICES_HTTP_HTTP_STREAM_H_

#include <httplib.h>
#include <openssl/ssl.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace capstan::services {

constexpr size_t kMaxHeadBytes = 32 * 1024;
constexpr size_t kMaxBodyBytes = 64 * 1024;

// The status that refuses a request because of its head, e.g. "411 Length Required"; "" if it may
// continue. Refuses methods other than GET, HEAD and POST, and everything that httplib would read
// without an end, unpack, parse by recursion or repeat: a body without a length, compressed or in
// parts, and ranges.
absl::string_view RefusalOf(absl::string_view head);

class HttpStream final : public httplib::Stream {
 public:
  // How long the request may take, and then its answer. It is called again and again meanwhile, so
  // the limit may become shorter.
  using Patience = std::function<absl::Duration()>;

  // Owns `fd`. `tls`: null for plaintext.
  HttpStream(int fd, SSL_CTX* tls, Patience patience);
  ~HttpStream() override;  // closes the connection
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  // Does the handshake and reads the head. False: the peer is gone, or was refused with an answer.
  bool Open();

  // For httplib. read: 0 means end; -1 means an error, or that the time or the byte limit is used
  // up.
  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, size_t size) override;
  ssize_t write(const char* from, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  // Not the descriptor, because httplib answers 500 for descriptors from 1024 on. It does so for
  // select, which is not used here.
  socket_t socket() const override { return 0; }

 private:
  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  bool Shake();
  absl::string_view ReadHead(bool* gone);
  void Refuse(absl::string_view status);
  // Waits for data and appends it to buffer_. Returns the same values as read().
  ssize_t Fill();
  ssize_t Send(const char* from, size_t size);
  // Calls `attempt(&events)` until it succeeds (>= 0), or fails (-1) and names no events to wait
  // for.
  template <typename Attempt>
  ssize_t Repeat(Attempt attempt);
  // False: the time is over.
  bool Await(int events);
  // The events that `ssl_` waits for after `rc`; 0: none, because it is broken.
  int EventsOf(int rc);

  const int fd_;
  const Patience patience_;
  std::unique_ptr<SSL, FreeSsl> ssl_;  // null: plaintext
  absl::Duration began_;               // start of the request, then of its answer
  bool answering_ = false;
  bool late_ = false;
  bool broken_ = false;
  std::string buffer_;  // read from the connection
  size_t given_ = 0;    // bytes of buffer_ that httplib has read
  size_t taken_ = 0;    // bytes read from the connection in total
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_HTTP_HTTP_STREAM_H_
