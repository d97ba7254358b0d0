#include "services/endpoint/endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace capstan::services {
namespace {

absl::Status CheckSecurity(const Endpoint& endpoint, const Security& security,
                           absl::string_view verb, bool token) {
  if (endpoint.is_unix()) return absl::OkStatus();
  const struct {
    absl::string_view flag;
    const std::string& value;
    bool needed;
  } files[] = {{"--tls-cert", security.tls_cert, true},
               {"--tls-key", security.tls_key, true},
               {"--tls-ca", security.tls_ca, true},
               {"--token-file", security.token_file, token}};
  for (const auto& file : files) {
    if (security.insecure && !file.value.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--insecure and ", file.flag, " exclude each other"));
    }
    if (!security.insecure && file.needed && file.value.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          endpoint.ToString(), ": ", verb, " on TCP needs ", file.flag,
          "; `capstan certs init DIR` and `capstan certs issue ROLE` make certificates and tokens, "
          "--insecure does without them"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string Endpoint::ToString() const {
  // If the path begins with two slashes, the first two slashes after the colon belong to the URI.
  if (is_unix()) return absl::StrCat(absl::StartsWith(path, "//") ? "unix://" : "unix:", path);
  if (absl::StrContains(host, ':')) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text) {
  Endpoint endpoint;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    if (absl::StartsWith(rest, "//")) rest.remove_prefix(2);  // unix:///a is the same as unix:/a
    if (rest.empty() || absl::StrContains(rest, '\0')) {
      return absl::InvalidArgumentError(absl::StrCat("address '", text, "': the path is empty"));
    }
    if (rest.size() > kMaxUnixPathBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("address '", text, "': the path of a Unix socket has ", rest.size(),
                       " bytes, at most ", kMaxUnixPathBytes, " are possible"));
    }
    endpoint.path = std::string(rest);
    return endpoint;
  }
  endpoint.kind = Endpoint::Kind::kTcp;
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", text, "': want ADDR:PORT or unix:PATH"));
  }
  absl::string_view host = rest.substr(0, colon);
  const absl::string_view port = rest.substr(colon + 1);
  const bool brackets = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  if (brackets) host = host.substr(1, host.size() - 2);
  // An IPv6 address without brackets is ambiguous, and only an IPv6 address has brackets.
  if (host.empty() || brackets != absl::StrContains(host, ':') ||
      !std::all_of(host.begin(), host.end(), [](char c) {
        return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '[' && c != ']' &&
               c != '/';
      })) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", text, "': want ADDR:PORT, [IPV6]:PORT or unix:PATH"));
  }
  // SimpleAtoi accepts signs and spaces.
  const bool digits = !port.empty() && port.find_first_not_of("0123456789") == port.npos;
  if (!digits || !absl::SimpleAtoi(port, &endpoint.port) || endpoint.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", text, "': got port '", port, "', want 0 to 65535"));
  }
  endpoint.host = std::string(host);
  return endpoint;
}

absl::Status CheckListenSecurity(const Endpoint& endpoint, const Security& security) {
  return CheckSecurity(endpoint, security, "listening", /*token=*/false);
}

absl::Status CheckConnectSecurity(const Endpoint& endpoint, const Security& security,
                                  bool with_token) {
  if (!endpoint.is_unix() && endpoint.port == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", endpoint.ToString(), "': port 0 is only for listening"));
  }
  return CheckSecurity(endpoint, security, "connecting", with_token);
}

absl::Status CheckSocketFolder(const Endpoint& endpoint) {
  const size_t slash = endpoint.path.rfind('/');
  const std::string folder = slash == std::string::npos ? std::string(".")
                             : slash == 0               ? std::string("/")
                                                        : endpoint.path.substr(0, slash);
  struct stat info;
  if (stat(folder.c_str(), &info) != 0) {
    return absl::NotFoundError(
        absl::StrCat("folder of ", endpoint.ToString(), ": ", std::strerror(errno)));
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "folder %s of the Unix socket: mode %04o, owner %d; want a folder of mode 0700, owner %d",
        folder, info.st_mode & 07777, info.st_uid, geteuid()));
  }
  return absl::OkStatus();
}

absl::Status ProbeTcpBind(const Endpoint& endpoint) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int rc =
      getaddrinfo(endpoint.host.c_str(), absl::StrCat(endpoint.port).c_str(), &hints, &found);
  if (rc != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen on ", endpoint.ToString(), ": ", gai_strerror(rc)));
  }
  int error = 0;
  for (const addrinfo* it = found; it != nullptr && error == 0; it = it->ai_next) {
    const int fd = socket(it->ai_family, it->ai_socktype | SOCK_CLOEXEC, it->ai_protocol);
    if (fd < 0) continue;  // e.g. no IPv6 in this kernel
    const int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, it->ai_addr, it->ai_addrlen) != 0 || listen(fd, 1) != 0) error = errno;
    close(fd);
  }
  freeaddrinfo(found);
  if (error == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("listen on ", endpoint.ToString(), ": ", std::strerror(error)));
}

absl::StatusOr<std::string> InterfaceAddress(absl::string_view interface) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) {
    return absl::UnavailableError(absl::StrCat("getifaddrs: ", std::strerror(errno)));
  }
  std::string v4;
  std::string v6;
  std::set<std::string> names;
  for (const ifaddrs* it = all; it != nullptr; it = it->ifa_next) {
    names.insert(it->ifa_name);
    if (it->ifa_addr == nullptr || interface != it->ifa_name) continue;
    char text[INET6_ADDRSTRLEN] = {};
    if (it->ifa_addr->sa_family == AF_INET && v4.empty()) {
      const auto* const address = reinterpret_cast<const sockaddr_in*>(it->ifa_addr);
      v4 = inet_ntop(AF_INET, &address->sin_addr, text, sizeof(text));
    } else if (it->ifa_addr->sa_family == AF_INET6 && v6.empty()) {
      const auto* const address = reinterpret_cast<const sockaddr_in6*>(it->ifa_addr);
      if (IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr)) continue;  // reachable only with a scope
      v6 = inet_ntop(AF_INET6, &address->sin6_addr, text, sizeof(text));
    }
  }
  freeifaddrs(all);
  if (!v4.empty()) return v4;
  if (!v6.empty()) return v6;
  return absl::NotFoundError(
      absl::StrCat("interface '", interface, "' ",
                   names.count(std::string(interface)) != 0 ? "has no address" : "does not exist",
                   "; there are ", absl::StrJoin(names, ", ")));
}

bool IsWildcard(absl::string_view host) { return host == "0.0.0.0" || host == "::"; }

bool IsLoopback(absl::string_view host) {
  return host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

}  // namespace capstan::services
