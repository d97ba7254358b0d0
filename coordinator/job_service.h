// JobService on gRPC's callback API: validates, then posts to the coordinator's strand.
//
// No call waits on a thread of gRPC or of the strand for a disk of jobs. SubmitJob looks at paths
// by PathChecks, Diagnose at folders by FolderCheck, VerifyCheckpoint reads files as a FileCall; the
// others need no disk of jobs. A disk that hangs keeps one thread and kMaxVerified verifications,
// which are over for their callers when these leave, or after FileCalls::kPatience without a block;
// further ones are refused with UNAVAILABLE and the disk's root. The end of the coordinator waits
// for none of them.
#ifndef CAPSTAN_COORDINATOR_JOB_SERVICE_H_
#define CAPSTAN_COORDINATOR_JOB_SERVICE_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "capstan/job/v1/job_service.grpc.pb.h"
#include "coordinator/coordinator.h"
#include "coordinator/diagnosis.h"
#include "coordinator/file_call.h"
#include "coordinator/file_threads.h"
#include "coordinator/path_policy.h"
#include "services/clock/clock.h"

namespace capstan::coordinator {

// Of every request that names a job. InvalidArgument with the field.
absl::Status CheckJobId(const std::string& job_id);

class JobServiceImpl final : public job::v1::JobService::CallbackService {
 public:
  // Verifications of checkpoints on one disk at once.
  static constexpr size_t kMaxVerified = FileThreads::kMaxWaiting;

  // All but the folders are borrowed; `metrics` may be null.
  JobServiceImpl(Coordinator& coordinator, const PathPolicy& policy, CoordinatorMetrics* metrics,
                 ClusterFolders folders)
      : coordinator_(coordinator),
        policy_(policy),
        metrics_(metrics),
        folders_(std::move(folders)),
        started_(MonotonicNow()),
        calls_(coordinator, kMaxVerified) {}

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* context,
                                      const job::v1::SubmitJobRequest* request,
                                      job::v1::SubmitJobResponse* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const job::v1::GetJobRequest* request,
                                   job::v1::GetJobResponse* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const job::v1::ListJobsRequest* request,
                                     job::v1::ListJobsResponse* response) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context,
                                      const job::v1::CancelJobRequest* request,
                                      job::v1::CancelJobResponse* response) override;

  // job_control.cc
  grpc::ServerUnaryReactor* SuspendJob(grpc::CallbackServerContext* context,
                                       const job::v1::SuspendJobRequest* request,
                                       job::v1::SuspendJobResponse* response) override;
  grpc::ServerUnaryReactor* ResumeJob(grpc::CallbackServerContext* context,
                                      const job::v1::ResumeJobRequest* request,
                                      job::v1::ResumeJobResponse* response) override;
  grpc::ServerUnaryReactor* RetryJob(grpc::CallbackServerContext* context,
                                     const job::v1::RetryJobRequest* request,
                                     job::v1::RetryJobResponse* response) override;
  grpc::ServerUnaryReactor* UpdateJob(grpc::CallbackServerContext* context,
                                      const job::v1::UpdateJobRequest* request,
                                      job::v1::UpdateJobResponse* response) override;
  grpc::ServerUnaryReactor* ListCheckpoints(grpc::CallbackServerContext* context,
                                            const job::v1::ListCheckpointsRequest* request,
                                            job::v1::ListCheckpointsResponse* response) override;

  grpc::ServerWriteReactor<job::v1::WatchJobResponse>* WatchJob(
      grpc::CallbackServerContext* context, const job::v1::WatchJobRequest* request) override;
  grpc::ServerWriteReactor<job::v1::StreamLogsResponse>* StreamLogs(
      grpc::CallbackServerContext* context, const job::v1::StreamLogsRequest* request) override;
  grpc::ServerWriteReactor<job::v1::StreamEventsResponse>* StreamEvents(
      grpc::CallbackServerContext* context, const job::v1::StreamEventsRequest* request) override;
  // job_service_metrics.cc
  grpc::ServerUnaryReactor* GetMetrics(grpc::CallbackServerContext* context,
                                       const job::v1::GetMetricsRequest* request,
                                       job::v1::GetMetricsResponse* response) override;
  // job_service_verify.cc
  grpc::ServerUnaryReactor* VerifyCheckpoint(grpc::CallbackServerContext* context,
                                             const job::v1::VerifyCheckpointRequest* request,
                                             job::v1::VerifyCheckpointResponse* response) override;
  // job_service_nodes.cc
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

  // What FileCalls says.
  void Drain() { calls_.Drain(); }
  bool Stop(absl::Duration patience) { return calls_.Stop(patience); }

 private:
  friend class VerifyCall;

  Coordinator& coordinator_;
  const PathPolicy& policy_;
  CoordinatorMetrics* const metrics_;
  const ClusterFolders folders_;
  const absl::Duration started_;
  FileCalls calls_;  // of VerifyCheckpoint; they use all of the above: last
};

// InvalidArgument with its field violations: the rules of training/spec as the core's validator.
absl::Status ValidateJobSpec(const job::v1::JobSpec& spec);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_JOB_SERVICE_H_
