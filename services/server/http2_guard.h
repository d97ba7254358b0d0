// Watches what one client sends over HTTP/2, and says when it floods the server.
//
// gRPC 1.51 bounds what a whole request costs, and two things it does not: a header block that never
// ends (CONTINUATION frames: a gigabyte in 3 s over one connection, before any token is looked at)
// and streams that are opened and reset at once, which do not count as open. Both are seen in the
// heads of the frames alone, so nothing is decoded here.
//
// InstallHttp2Guard puts one behind every TLS connection that a server of this process accepts:
// SSL_read of this program stands in front of OpenSSL's, and fails once Take is false; gRPC then
// closes the connection. Connections that do not begin with HTTP/2's preface (the HTTP port) are
// left alone. Plaintext TCP (--insecure) and Unix sockets are not watched.
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
  size_t max_header_bytes = 64 * 1024;  // of a header block as sent, its frames' heads counted too
  double reset_burst = 200;             // streams that the client resets at once; twice the calls
  double resets_per_second = 50;        // and of which so many are given back
};

// One thread at a time.
class Http2Guard {
 public:
  explicit Http2Guard(const Http2Limits& limits = {})
      : limits_(limits), resets_left_(limits.reset_burst) {}

  // The next bytes that came, at `now`, a monotonic time. False: the client floods; so ever after.
  bool Take(absl::string_view bytes, absl::Duration now);
  // "" or what the client did.
  const char* why() const { return why_; }

 private:
  bool OnFrame(absl::Duration now);

  const Http2Limits limits_;
  bool other_ = false;    // not HTTP/2
  size_t preface_ = 0;    // bytes of it that have come
  uint8_t head_[9] = {};  // of the frame that comes
  size_t head_size_ = 0;
  size_t payload_left_ = 0;
  bool in_headers_ = false;  // between HEADERS and END_HEADERS
  size_t header_bytes_ = 0;
  double resets_left_;
  absl::Duration refilled_;
  const char* why_ = "";
};

// Idempotent. Before the first connection.
void InstallHttp2Guard();
// Connections that were ended by it in this process.
int64_t Http2FloodsEnded();

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SERVER_HTTP2_GUARD_H_
