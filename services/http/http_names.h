// Which host names a plain HTTP port answers to, and which pages may send it requests.
//
// A hostile page that is open in a browser inside the network may reach ports that its author
// cannot. The author gives his own host name the address of our port (DNS rebinding), or has the
// browser send a form. The browser reveals both: the host name in Host, the page in Origin.
#ifndef CAPSTAN_SERVICES_HTTP_HTTP_NAMES_H_
#define CAPSTAN_SERVICES_HTTP_HTTP_NAMES_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/http/http_server.h"

namespace capstan::services {

// Whether `host` is a name to which no stranger can assign an address: an IP address, a name
// without a dot, one beneath localhost, local, internal, svc, test or home.arpa, this machine's own
// name, or one of `names`. `host` is the value of a Host header, with or without a port.
bool IsOwnHost(absl::string_view host, const std::vector<std::string>& names);

// The answer that refuses the request; code 200 if it is not refused. Over TLS the certificate
// proves the name, so Host is not checked.
HttpResponse RefusalOfSource(const HttpRequest& request, const std::vector<std::string>& names);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_HTTP_HTTP_NAMES_H_
