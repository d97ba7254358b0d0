#include "coordinator/service_discovery.h"

#include <gtest/gtest.h>

namespace capstan::coordinator {
namespace {

void Add(core::NodeTable& nodes, const char* name, common::v1::Role role, const std::string& host,
         const char* url) {
  node::v1::Register reg;
  reg.set_name(name);
  reg.set_role(role);
  reg.set_host(host);
  reg.set_http_url(url);
  nodes.Admit(nodes.size() + 1, reg, {}, 1, absl::ZeroDuration(), absl::UnixEpoch());
}

TEST(ServiceDiscoveryTest, ListsWhoMayBeScraped) {
  core::NodeTable nodes;
  Add(nodes, "s0", common::v1::ROLE_PARAM_STORE, HostName(), "https://[::1]:7171");
  Add(nodes, "w0", common::v1::ROLE_WORKER, "node-1", "http://node-1:7271");
  Add(nodes, "w1", common::v1::ROLE_WORKER, "node-1", "");  // --http=off
  Add(nodes, "w2", common::v1::ROLE_WORKER, "node-2", "http://node-2:7271");
  Add(nodes, "w3", common::v1::ROLE_WORKER, "node-3", "http://node-3:7271");
  nodes.Find("w2")->Lose(/*left=*/false);  // it fell silent
  nodes.Find("w3")->Lose(/*left=*/true);
  EXPECT_EQ(
      ServiceDiscoveryJson("http://127.0.0.1:7071", nodes),
      R"([{"targets":["127.0.0.1:7071"],"labels":{"__scheme__":"http","component":"coordinator","node":"coordinator"}},
{"targets":["[::1]:7171"],"labels":{"__scheme__":"https","component":"param_store","node":"s0"}},
{"targets":["node-1:7271"],"labels":{"__scheme__":"http","component":"gpu_worker","node":"w0"}},
{"targets":["node-2:7271"],"labels":{"__scheme__":"http","component":"gpu_worker","node":"w2"}}]
)");
}

// Three hosts with the default of --http, and one that others can reach.
TEST(ServiceDiscoveryTest, LoopbackOfAnotherHostIsNotListed) {
  core::NodeTable nodes;
  Add(nodes, "s0", common::v1::ROLE_PARAM_STORE, "node-1", "http://[::1]:7081");
  Add(nodes, "s1", common::v1::ROLE_PARAM_STORE, "node-2", "http://localhost:7081");
  Add(nodes, "w0", common::v1::ROLE_WORKER, "node-0", "http://127.0.0.1:7091");
  Add(nodes, "w1", common::v1::ROLE_WORKER, "node-1", "http://127.0.0.1:7091");
  Add(nodes, "w2", common::v1::ROLE_WORKER, "node-3", "https://node-3:7091");
  EXPECT_EQ(
      ServiceDiscoveryJson("http://127.0.0.1:7071", nodes, "node-0"),
      R"([{"targets":["127.0.0.1:7071"],"labels":{"__scheme__":"http","component":"coordinator","node":"coordinator"}},
{"targets":["127.0.0.1:7091"],"labels":{"__scheme__":"http","component":"gpu_worker","node":"w0"}},
{"targets":["node-3:7091"],"labels":{"__scheme__":"https","component":"gpu_worker","node":"w2"}}]
)");
}

// Group relies on this.
TEST(ServiceDiscoveryTest, NoOtherAddressIsLetIn) {
  node::v1::Register reg;
  reg.set_name("s0");
  reg.set_role(common::v1::ROLE_PARAM_STORE);
  reg.set_data_address("unix:/a");
  for (const char* url : {"", "http://a:1", "https://node-1.example:7071", "http://[::1]:1"}) {
    reg.set_http_url(url);
    EXPECT_TRUE(core::CheckRegister(reg).ok()) << url;
  }
  for (const char* url :
       {"a:1", "ftp://a:1", "http://", "http://a:1/x", "http://a\"b:1", "http://a b:1"}) {
    reg.set_http_url(url);
    EXPECT_EQ(core::CheckRegister(reg).code(), absl::StatusCode::kInvalidArgument) << url;
  }
}

}  // namespace
}  // namespace capstan::coordinator
