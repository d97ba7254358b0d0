// JobService's calls about nodes: who is there, and how much each says.
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/caller.h"
#include "coordinator/core/node_table.h"
#include "coordinator/job_service.h"
#include "coordinator/node_info.h"
#include "services/clock/clock.h"
#include "services/logging/log.h"
#include "services/status/status.h"

namespace capstan::coordinator {
namespace {

// Asks the core, and answers with the node as it is then.
template <typename Request, typename Response>
grpc::ServerUnaryReactor* SetDrained(Coordinator& coordinator, bool drained,
                                     grpc::CallbackServerContext* context, const Request* request,
                                     Response* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (absl::Status status = CheckAdmin(*context, drained ? "DrainNode" : "UndrainNode");
      !status.ok()) {
    reactor->Finish(services::ToGrpcStatus(status));
    return reactor;
  }
  coordinator.Post([&coordinator, drained, request, response, reactor] {
    if (coordinator.draining()) {
      reactor->Finish(services::ToGrpcStatus(absl::UnavailableError("the coordinator shuts down")));
      return;
    }
    const auto reply = [&coordinator, drained, request, response, reactor](const core::Reply& r) {
      job::v1::NodeInfo& info = *response->mutable_node();
      const core::Node* const node = coordinator.core().nodes().Find(request->node());
      if (node != nullptr) info = DescribeNode(*node, MonotonicNow());
      info.set_name(request->node());
      info.set_drained(drained);
      reactor->Finish(services::ToGrpcStatus(r.status));
    };
    coordinator.SetDrained(request->node(), drained, reply);
  });
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* JobServiceImpl::ListNodes(grpc::CallbackServerContext* context,
                                                    const job::v1::ListNodesRequest*,
                                                    job::v1::ListNodesResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  coordinator_.PostRead([this, response, reactor] {
    const absl::Duration now = MonotonicNow();
    for (const auto& entry : coordinator_.core().nodes().all()) {
      *response->add_nodes() = DescribeNode(entry.second, now);
    }
    *response->mutable_cluster() = DescribeCluster(coordinator_.core(), started_, now);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* JobServiceImpl::DrainNode(grpc::CallbackServerContext* context,
                                                    const job::v1::DrainNodeRequest* request,
                                                    job::v1::DrainNodeResponse* response) {
  return SetDrained(coordinator_, /*drained=*/true, context, request, response);
}

grpc::ServerUnaryReactor* JobServiceImpl::UndrainNode(grpc::CallbackServerContext* context,
                                                      const job::v1::UndrainNodeRequest* request,
                                                      job::v1::UndrainNodeResponse* response) {
  return SetDrained(coordinator_, /*drained=*/false, context, request, response);
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

grpc::ServerUnaryReactor* JobServiceImpl::Diagnose(grpc::CallbackServerContext* context,
                                                   const job::v1::DiagnoseRequest*,
                                                   job::v1::DiagnoseResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (absl::Status status = CheckAdmin(*context, "Diagnose"); !status.ok()) {
    reactor->Finish(services::ToGrpcStatus(status));
    return reactor;
  }
  coordinator_.Post([this, response, reactor] {
    Diagnosis::Begin(
        coordinator_, folders_,
        [response, reactor](const absl::Status& status, const job::v1::DiagnoseResponse& found) {
          *response = found;
          reactor->Finish(services::ToGrpcStatus(status));
        });
  });
  return reactor;
}

}  // namespace capstan::coordinator
