#include "coordinator/service_discovery.h"

#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/endpoint/endpoint.h"

namespace capstan::coordinator {
namespace {

// No escaping is needed, because CheckRegister admits only safe names and addresses.
std::string Group(const std::string& url, const char* component, const std::string& node) {
  const size_t scheme = url.find("://");
  return absl::StrCat("{\"targets\":[\"", url.substr(scheme + 3),
                      "\"],\"labels\":{\"__scheme__\":\"", url.substr(0, scheme),
                      "\",\"component\":\"", component, "\",\"node\":\"", node, "\"}}");
}

bool OnLoopback(const std::string& url) {
  const absl::StatusOr<services::Endpoint> at =
      services::ParseEndpoint(url.substr(url.find("://") + 3));
  return at.ok() && services::IsLoopback(at->host);
}

}  // namespace

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

std::string ServiceDiscoveryJson(const std::string& own_url, const core::NodeTable& nodes,
                                 const std::string& own_host) {
  std::vector<std::string> groups = {Group(own_url, "coordinator", "coordinator")};
  for (const auto& entry : nodes.all()) {
    const core::Node& node = entry.second;
    if (node.left() || node.reg().http_url().empty()) continue;
    if (OnLoopback(node.reg().http_url()) && node.reg().host() != own_host) continue;
    groups.push_back(
        Group(node.reg().http_url(), node.is_worker() ? "gpu_worker" : "param_store", node.name()));
  }
  return absl::StrCat("[", absl::StrJoin(groups, ",\n"), "]\n");
}

}  // namespace capstan::coordinator
