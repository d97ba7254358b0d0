// Under which names a plain HTTP port may be asked, and from which pages.
//
// A page of a stranger that is open in a browser inside may reach ports that the stranger cannot: he
// gives his own name the address of our port (DNS rebinding), or has the browser send a form. The
// browser tells both: the name in Host, the page in Origin.
#ifndef CAPSTAN_SERVICES_HTTP_HTTP_NAMES_H_
#define CAPSTAN_SERVICES_HTTP_HTTP_NAMES_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/http/http_server.h"

namespace capstan::services {

// A name that no stranger can give an address: an IP address, one without a dot, one beneath
// localhost, local, internal, svc, test or home.arpa, this machine's own, or one of `names`. `host` is
// that of a Host header, with a port or without.
bool IsOwnHost(absl::string_view host, const std::vector<std::string>& names);

// Why the request is refused, as a whole answer; code 200: it is not. Over TLS the certificate says
// whose name it is, so Host is not looked at there.
HttpResponse RefusalOfSource(const HttpRequest& request, const std::vector<std::string>& names);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_HTTP_HTTP_NAMES_H_
