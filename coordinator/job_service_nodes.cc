// JobService's calls about nodes: who is there, and how much each says.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/caller.h"
#include "coordinator/core/node_table.h"
#include "coordinator/job_service.h"
#include "services/logging/log.h"
#include "services/status/status.h"

namespace capstan::coordinator {
namespace {

job::v1::NodeInfo Describe(const core::Node& node, absl::Duration now) {
  job::v1::NodeInfo info;
  info.set_name(node.name());
  info.set_role(node.reg.role());
  info.set_host(node.host());
  info.set_version(node.reg.version());
  info.set_state(node.lost ? "LOST" : "READY");
  info.set_incarnation(node.incarnation);
  info.set_last_seen_seconds(std::max(0.0, absl::ToDoubleSeconds(now - node.last_heard)));
  for (const node::v1::Device& device : node.reg.devices()) info.add_devices(device.name());
  info.set_busy_devices(static_cast<int32_t>(std::count_if(
      node.slots.begin(), node.slots.end(), [](const std::string& job) { return !job.empty(); })));
  for (const std::string& job : node.jobs) info.add_job_ids(job);
  info.set_data_address(node.reg.data_address());
  return info;
}

}  // namespace

grpc::ServerUnaryReactor* JobServiceImpl::ListNodes(grpc::CallbackServerContext* context,
                                                    const job::v1::ListNodesRequest*,
                                                    job::v1::ListNodesResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  coordinator_.PostRead([this, response, reactor] {
    const absl::Duration now = MonotonicNow();
    for (const auto& entry : coordinator_.core().nodes().all()) {
      *response->add_nodes() = Describe(entry.second, now);
    }
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* JobServiceImpl::SetLogLevel(grpc::CallbackServerContext* context,
                                                      const job::v1::SetLogLevelRequest* request,
                                                      job::v1::SetLogLevelResponse*) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (absl::Status status = CheckAdmin(*context, "SetLogLevel"); !status.ok()) {
    reactor->Finish(services::ToGrpcStatus(status));
    return reactor;
  }
  const absl::StatusOr<services::LogLevel> level = services::ParseLogLevel(request->level());
  if (!level.ok()) {
    reactor->Finish(services::ToGrpcStatus(services::WithViolations(
        absl::InvalidArgumentError(absl::StrCat("level: ", level.status().message())),
        {{"level", std::string(level.status().message())}})));
    return reactor;
  }
  if (request->node().empty()) {
    services::SetLogLevel(*level);
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  coordinator_.Post([this, request, reactor] {
    node::v1::ConnectResponse message;
    message.mutable_set_log_level()->set_level(request->level());
    reactor->Finish(services::ToGrpcStatus(coordinator_.SendToNode(request->node(), message)));
  });
  return reactor;
}

}  // namespace capstan::coordinator
