// Where a gRPC server listens and a client connects, and the security that this needs. `unix:PATH`
// needs none, because the folder of the socket is 0700. TCP needs certificates or --insecure.
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
  // "unix:PATH", "host:port" or "[v6]:port". ParseEndpoint reads it, and gRPC accepts it as a
  // target.
  std::string ToString() const;
};

// InvalidArgument: neither form, a port out of range, or a path that is empty or longer than
// kMaxUnixPathBytes.
absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text);

// The credentials that a process was given. Empty means not given.
struct Security {
  bool insecure = false;   // --insecure: plaintext TCP is allowed
  std::string tls_cert;    // PEM file
  std::string tls_key;     // PEM file
  std::string tls_ca;      // PEM file
  std::string token_file;  // file with the token that this process sends
  std::string tokens;      // tokens.json with the tokens that a server accepts
};

// Whether `security` is enough to listen on / connect to `endpoint`. Does not look at the files.
// FailedPrecondition: TCP lacks something, which the message names. InvalidArgument: --insecure
// together with TLS files, or a port 0 to connect to.
absl::Status CheckListenSecurity(const Endpoint& endpoint, const Security& security);
absl::Status CheckConnectSecurity(const Endpoint& endpoint, const Security& security,
                                  bool with_token = true);

// The folder of a Unix socket must belong to this user and be closed to all others, because the
// socket asks for no credentials. FailedPrecondition, with the mode: it is not; NotFound: there is
// no such folder.
absl::Status CheckSocketFolder(const Endpoint& endpoint);

// Binds and closes a socket at a TCP `endpoint` to find out why a server cannot, since gRPC and
// cpp-httplib do not tell. OK: it could be bound just now. FailedPrecondition / InvalidArgument:
// the reason, with the address.
absl::Status ProbeTcpBind(const Endpoint& endpoint);

// The address of a network interface of this host, preferably IPv4, never link-local. NotFound:
// there is no such interface, or it has no address. The message names the existing interfaces.
absl::StatusOr<std::string> InterfaceAddress(absl::string_view interface);

// True for 0.0.0.0 and ::, which stand for all addresses, so nobody can connect to them.
bool IsWildcard(absl::string_view host);

// 127.0.0.0/8, ::1 or "localhost".
bool IsLoopback(absl::string_view host);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_ENDPOINT_ENDPOINT_H_
