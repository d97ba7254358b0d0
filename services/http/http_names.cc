#include "services/http/http_names.h"

#include <arpa/inet.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace capstan::services {
namespace {

bool IsAddress(const std::string& host) {
  in6_addr address;  // large enough for both
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

std::string NameOf(absl::string_view host) {
  if (!host.empty() && host[0] == '[') {
    const size_t end = host.find(']');
    if (end == host.npos || (end + 1 < host.size() && host[end + 1] != ':')) return "";
    return std::string(host.substr(1, end - 1));
  }
  std::string name = absl::AsciiStrToLower(host.substr(0, host.find(':')));
  if (!name.empty() && name.back() == '.') name.pop_back();
  return name;
}

}  // namespace

bool IsOwnHost(absl::string_view host, const std::vector<std::string>& names) {
  const std::string name = NameOf(host);
  if (name.empty() || IsAddress(name)) return !name.empty();
  if (!absl::StrContains(name, '.')) return true;
  for (const char* end : {".localhost", ".local", ".internal", ".svc", ".test", ".home.arpa"}) {
    if (absl::EndsWith(name, end)) return true;
  }
  char own[256] = {};
  if (::gethostname(own, sizeof(own) - 1) == 0 && absl::EqualsIgnoreCase(name, own)) return true;
  for (const std::string& allowed : names) {
    if (absl::EqualsIgnoreCase(name, allowed)) return true;
  }
  return false;
}

HttpResponse RefusalOfSource(const HttpRequest& request, const std::vector<std::string>& names) {
  const auto host = request.headers.find("host");  // HTTP/1.0 has none, but no browser speaks it
  if (host != request.headers.end() && !request.tls && !IsOwnHost(host->second, names)) {
    return {.code = 421,
            .body =
                "This server does not know the name in Host. Ask it by its address, or start "
                "it with --http-host and the name.\n"};
  }
  const auto origin = request.headers.find("origin");
  if (origin == request.headers.end()) return {};
  // A proxy in front of a plain port may speak TLS.
  for (const char* scheme : {"https://", "http://"}) {
    if (host == request.headers.end() || (request.tls && scheme[4] != 's')) continue;
    if (absl::EqualsIgnoreCase(origin->second, absl::StrCat(scheme, host->second))) return {};
  }
  return {.code = 403, .body = "A page of another site sent this request.\n"};
}

}  // namespace capstan::services
