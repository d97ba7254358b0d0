// NodeService on gRPC's callback API: one stream per node, handled on the coordinator's strand.
#ifndef CAPSTAN_COORDINATOR_NODE_SERVICE_H_
#define CAPSTAN_COORDINATOR_NODE_SERVICE_H_

#include "capstan/node/v1/node.grpc.pb.h"
#include "coordinator/coordinator.h"

namespace capstan::coordinator {

class NodeServiceImpl final : public node::v1::NodeService::CallbackService {
 public:
  explicit NodeServiceImpl(Coordinator& coordinator) : coordinator_(coordinator) {}

  grpc::ServerBidiReactor<node::v1::ConnectRequest, node::v1::ConnectResponse>* Connect(
      grpc::CallbackServerContext* context) override;

 private:
  Coordinator& coordinator_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_NODE_SERVICE_H_
