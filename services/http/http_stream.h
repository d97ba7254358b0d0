// One connection of an HttpServer, plaintext or TLS, as httplib reads and writes it.
//
// httplib limits each read and the lengths that it is told, so whoever sends a byte now and then, a
// line or a body without end, or asks for one page a thousand times over holds it for long. This
// stream takes the whole head of the request first, refuses what has no end, and gives the request
// and its answer a time each.
//
// Of one thread.
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

// The status that refuses a request for its head, e.g. "411 Length Required"; "": it may go on.
// Refused are other methods than GET, HEAD and POST, and what httplib would read without an end,
// unpack, parse by recursion or repeat: a body without a length, compressed or in parts, and ranges.
absl::string_view RefusalOf(absl::string_view head);

class HttpStream final : public httplib::Stream {
 public:
  // How long the request may take, and then its answer; asked again and again meanwhile, so that
  // it may become shorter.
  using Patience = std::function<absl::Duration()>;

  // Owns `fd`. `tls`: null for plaintext.
  HttpStream(int fd, SSL_CTX* tls, Patience patience);
  ~HttpStream() override;  // Closes the connection.
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  // Shakes hands and takes the head. False: the other side is gone or refused, and knows why.
  bool Open();

  // For httplib. read: 0 is the end; -1 an error, or time or bytes are used up.
  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, size_t size) override;
  ssize_t write(const char* from, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  // Not the descriptor: httplib answers 500 to 1024 and more, for select, which is not used here.
  socket_t socket() const override { return 0; }

 private:
  struct FreeSsl {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  bool Shake();
  absl::string_view ReadHead(bool* gone);
  void Refuse(absl::string_view status);
  // Appends to buffer_ what there is, waiting for a byte; as read().
  ssize_t Fill();
  ssize_t Send(const char* from, size_t size);
  // Calls `attempt(&events)` until it has done something (>= 0), or has failed (-1) and names no
  // events to wait for.
  template <typename Attempt>
  ssize_t Repeat(Attempt attempt);
  // False: the time is up.
  bool Await(int events);
  // What `ssl_` waits for after `rc`; 0: nothing, it is broken.
  int EventsOf(int rc);

  const int fd_;
  const Patience patience_;
  std::unique_ptr<SSL, FreeSsl> ssl_;  // null: plaintext
  absl::Duration began_;               // the request, then its answer
  bool answering_ = false;
  bool late_ = false;
  bool broken_ = false;
  std::string buffer_;  // taken from the connection
  size_t given_ = 0;    // of buffer_, to httplib
  size_t taken_ = 0;    // from the connection in all
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_HTTP_HTTP_STREAM_H_
