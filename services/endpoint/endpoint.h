// Where a gRPC server listens and a client connects, and which security that needs: `unix:PATH`
// none (the folder of the socket is 0700), TCP certificates or --insecure.
//
// Thread-safe: values and free functions. Knows no gRPC.
#ifndef CAPSTAN_SERVICES_ENDPOINT_ENDPOINT_H_
#define CAPSTAN_SERVICES_ENDPOINT_ENDPOINT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::services {

inline constexpr size_t kMaxUnixPathBytes = 107;  // sun_path less its NUL

struct Endpoint {
  enum class Kind { kUnix, kTcp };
  Kind kind = Kind::kUnix;
  std::string path;  // kUnix
  std::string host;  // kTcp: a name or an address, IPv6 without brackets
  int port = 0;      // kTcp: 0..65535; 0 lets the kernel choose, for listening only

  bool is_unix() const { return kind == Kind::kUnix; }
  // "unix:PATH", "host:port" or "[v6]:port": what ParseEndpoint reads and gRPC takes as a target.
  std::string ToString() const;
};

// InvalidArgument: neither form, a port out of range, a path that is empty or longer than
// kMaxUnixPathBytes.
absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text);

// What a process was given to prove itself with. Empty = not given.
struct Security {
  bool insecure = false;   // --insecure: plaintext TCP is allowed
  std::string tls_cert;    // PEM file
  std::string tls_key;     // PEM file
  std::string tls_ca;      // PEM file
  std::string token_file;  // file with the token that this process calls others with
  std::string tokens;      // tokens.json: whose calls a server takes
};

// Whether `security` is enough to listen on / connect to `endpoint`; the files are not looked at.
// FailedPrecondition: TCP without what it needs, which the message names. InvalidArgument:
// --insecure together with TLS files; a port 0 to connect to.
absl::Status CheckListenSecurity(const Endpoint& endpoint, const Security& security);
absl::Status CheckConnectSecurity(const Endpoint& endpoint, const Security& security,
                                  bool with_token = true);

// The folder of a Unix socket must be ours and closed to all others, since the socket asks for no
// credentials. FailedPrecondition: it is not, with its mode; NotFound: there is no such folder.
absl::Status CheckSocketFolder(const Endpoint& endpoint);

// Binds and closes a socket at a TCP `endpoint` to learn why a server could not: gRPC and
// cpp-httplib do not tell. OK: it could be bound just now. FailedPrecondition / InvalidArgument:
// why not, with address.
absl::Status ProbeTcpBind(const Endpoint& endpoint);

// The address of a network interface of this host, IPv4 rather than IPv6, never link-local. NotFound:
// there is no such interface, or it has none; the message names those that there are.
absl::StatusOr<std::string> InterfaceAddress(absl::string_view interface);

// True for 0.0.0.0 and ::, which stand for every address and tell nobody where to go.
bool IsWildcard(absl::string_view host);

// 127.0.0.0/8, ::1 or "localhost".
bool IsLoopback(absl::string_view host);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_ENDPOINT_ENDPOINT_H_
