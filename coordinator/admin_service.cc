#include "coordinator/admin_service.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/caller.h"
#include "coordinator/core/cards.h"
#include "coordinator/core/node_table.h"
#include "coordinator/node_info.h"
#include "services/clock/clock.h"
#include "services/logging/log.h"
#include "services/status/status.h"

namespace capstan::coordinator {
namespace {

constexpr int kMaxListedNodes = 10000;
constexpr size_t kMaxNodesBytes = 4 * 1024 * 1024 - 4096;  // our clients take 4 MiB
constexpr size_t kPerNodeBytes = 8;                        // overhead of an entry, at most

// Tells the core and answers with the node's new state.
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

grpc::ServerUnaryReactor* AdminServiceImpl::ListNodes(grpc::CallbackServerContext* context,
                                                      const job::v1::ListNodesRequest* request,
                                                      job::v1::ListNodesResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (request->limit() < 0 || request->limit() > kMaxListedNodes) {
    const std::string text =
        absl::StrCat("limit: want 0 to ", kMaxListedNodes, ", got ", request->limit());
    reactor->Finish(services::ToGrpcStatus(
        services::WithViolations(absl::InvalidArgumentError(text), {{"limit", text}})));
    return reactor;
  }
  coordinator_.PostRead([this, request, response, reactor] {
    const absl::Duration now = MonotonicNow();
    const int limit = request->limit() == 0 ? kMaxListedNodes : request->limit();
    const auto& all = coordinator_.core().nodes().all();
    size_t bytes = 0;
    for (auto it = all.upper_bound(request->page_token()); it != all.end(); ++it) {
      job::v1::NodeInfo node = DescribeNode(it->second, now);
      std::string shared = core::SharedCardsText(coordinator_.core().nodes(), it->second);
      if (!shared.empty()) node.add_warnings(std::move(shared));
      bytes += node.ByteSizeLong() + kPerNodeBytes;
      const int count = response->nodes_size();
      if (count == limit || (count > 0 && bytes > kMaxNodesBytes)) {
        response->set_next_page_token(response->nodes(count - 1).name());
        break;
      }
      *response->add_nodes() = std::move(node);
    }
    *response->mutable_cluster() = DescribeCluster(coordinator_.core(), started_, now);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* AdminServiceImpl::DrainNode(grpc::CallbackServerContext* context,
                                                      const job::v1::DrainNodeRequest* request,
                                                      job::v1::DrainNodeResponse* response) {
  return SetDrained(coordinator_, /*drained=*/true, context, request, response);
}

grpc::ServerUnaryReactor* AdminServiceImpl::UndrainNode(grpc::CallbackServerContext* context,
                                                        const job::v1::UndrainNodeRequest* request,
                                                        job::v1::UndrainNodeResponse* response) {
  return SetDrained(coordinator_, /*drained=*/false, context, request, response);
}

grpc::ServerUnaryReactor* AdminServiceImpl::SetLogLevel(grpc::CallbackServerContext* context,
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

grpc::ServerUnaryReactor* AdminServiceImpl::Diagnose(grpc::CallbackServerContext* context,
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
