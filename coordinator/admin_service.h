// AdminService on gRPC's callback API: the nodes of the cluster, drains, log levels and the
// diagnosis. Everybody may list the nodes; all other calls are for admins (CheckAdmin).
//
// Nodes and drains belong to the core, so each call is carried out on the coordinator's strand. No
// call waits for a disk: Diagnose checks folders through FolderCheck, and answers without those
// that hang.
//
// Thread-safe.
#ifndef CAPSTAN_COORDINATOR_ADMIN_SERVICE_H_
#define CAPSTAN_COORDINATOR_ADMIN_SERVICE_H_

#include <utility>

#include "absl/time/time.h"
#include "capstan/job/v1/admin_service.grpc.pb.h"
#include "coordinator/coordinator.h"
#include "coordinator/diagnosis.h"
#include "services/clock/clock.h"

namespace capstan::coordinator {

class AdminServiceImpl final : public job::v1::AdminService::CallbackService {
 public:
  // Borrows the coordinator. `folders`: those that Diagnose checks.
  AdminServiceImpl(Coordinator& coordinator, ClusterFolders folders)
      : coordinator_(coordinator), folders_(std::move(folders)), started_(MonotonicNow()) {}

  grpc::ServerUnaryReactor* ListNodes(grpc::CallbackServerContext* context,
                                      const job::v1::ListNodesRequest* request,
                                      job::v1::ListNodesResponse* response) override;
  grpc::ServerUnaryReactor* DrainNode(grpc::CallbackServerContext* context,
                                      const job::v1::DrainNodeRequest* request,
                                      job::v1::DrainNodeResponse* response) override;
  grpc::ServerUnaryReactor* UndrainNode(grpc::CallbackServerContext* context,
                                        const job::v1::UndrainNodeRequest* request,
                                        job::v1::UndrainNodeResponse* response) override;
  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* context,
                                        const job::v1::SetLogLevelRequest* request,
                                        job::v1::SetLogLevelResponse* response) override;
  grpc::ServerUnaryReactor* Diagnose(grpc::CallbackServerContext* context,
                                     const job::v1::DiagnoseRequest* request,
                                     job::v1::DiagnoseResponse* response) override;

 private:
  Coordinator& coordinator_;
  const ClusterFolders folders_;
  const absl::Duration started_;  // the uptime counts from it
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_ADMIN_SERVICE_H_
