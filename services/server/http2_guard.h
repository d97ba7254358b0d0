// Watches the bytes that one client sends over HTTP/2, and detects that it floods the server.
//
// gRPC 1.51 limits the cost of a whole request, but not two other things. One is a header block
// that never ends (CONTINUATION frames: a gigabyte in 3 s over one connection, before any token is
// checked). The other is streams that are opened and reset at once, which do not count as open.
// Both show in the heads of the frames, so nothing is decoded here.
//
// InstallHttp2Guard puts a guard behind every TLS connection that a server of this process accepts.
// This program's SSL_read replaces OpenSSL's and fails once Take returns false; gRPC then closes
// the connection. Connections that do not begin with HTTP/2's preface (the HTTP port) are not
// checked. Plaintext TCP (--insecure) and Unix sockets are not watched.
//
// Source: RFC 9113, sections 3.4, 4.1, 6.2, 6.4, 6.10; CVE-2023-44487, CVE-2024-27316.
#ifndef CAPSTAN_SERVICES_SERVER_HTTP2_GUARD_H_
#define CAPSTAN_SERVICES_SERVER_HTTP2_GUARD_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace capstan::services {

struct Http2Limits {
  size_t max_header_bytes = 64 * 1024;  // of a header block as sent, with its frames' heads
  double reset_burst = 200;             // streams that a client may reset at once; twice the calls
  double resets_per_second = 50;        // how fast this allowance grows back
};

// For one thread at a time.
class Http2Guard {
 public:
  explicit Http2Guard(const Http2Limits& limits = {})
      : limits_(limits), resets_left_(limits.reset_burst) {}

  // The next bytes that arrived, at monotonic time `now`. False: the client floods. From then on it
  // always returns false.
  bool Take(absl::string_view bytes, absl::Duration now);
  // "", or a description of the flood.
  const char* why() const { return why_; }

 private:
  bool OnFrame(absl::Duration now);

  const Http2Limits limits_;
  bool other_ = false;    // not HTTP/2
  size_t preface_ = 0;    // bytes of the preface that have arrived
  uint8_t head_[9] = {};  // of the frame that is arriving
  size_t head_size_ = 0;
  size_t payload_left_ = 0;
  bool in_headers_ = false;  // between HEADERS and END_HEADERS
  size_t header_bytes_ = 0;
  double resets_left_;
  absl::Duration refilled_;
  const char* why_ = "";
};

// Idempotent. Call it before the first connection.
void InstallHttp2Guard();

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SERVER_HTTP2_GUARD_H_
