// JobService on gRPC's callback API: validates, then posts to the coordinator's strand.
//
// No call blocks a thread of gRPC or the strand on a disk of jobs. SubmitJob checks paths through
// PathChecks, and VerifyCheckpoint reads files as a FileCall. The others need no disk of jobs. A hung disk blocks at most one thread and kMaxVerified
// verifications. For its caller, a verification ends when the caller leaves, or when no block came
// for FileCalls::kPatience. Further ones are refused with UNAVAILABLE and the name of the disk's
// root. The coordinator does not wait for them when it ends.
#ifndef CAPSTAN_COORDINATOR_JOB_SERVICE_H_
#define CAPSTAN_COORDINATOR_JOB_SERVICE_H_

#include <string>

#include "absl/status/status.h"
#include "capstan/job/v1/job_service.grpc.pb.h"
#include "coordinator/coordinator.h"
#include "coordinator/file_call.h"
#include "coordinator/file_threads.h"
#include "coordinator/path_policy.h"

namespace capstan::coordinator {

// For every request that names a job. InvalidArgument names the field.
absl::Status CheckJobId(const std::string& job_id);

class JobServiceImpl final : public job::v1::JobService::CallbackService {
 public:
  // Verifications of checkpoints on one disk at once.
  static constexpr size_t kMaxVerified = FileThreads::kMaxWaiting;

  // Borrows all. `metrics` may be null.
  JobServiceImpl(Coordinator& coordinator, const PathPolicy& policy, CoordinatorMetrics* metrics)
      : coordinator_(coordinator),
        policy_(policy),
        metrics_(metrics),
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
  grpc::ServerUnaryReactor* MoveShard(grpc::CallbackServerContext* context,
                                      const job::v1::MoveShardRequest* request,
                                      job::v1::MoveShardResponse* response) override;
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

  // See FileCalls.
  void Drain() { calls_.Drain(); }
  bool Stop(absl::Duration patience) { return calls_.Stop(patience); }

 private:
  friend class VerifyCall;

  Coordinator& coordinator_;
  const PathPolicy& policy_;
  CoordinatorMetrics* const metrics_;
  FileCalls calls_;  // of VerifyCheckpoint; last: they use all of the above
};

// InvalidArgument with field violations. Checks the rules of training/spec, as the core's
// validator.
absl::Status ValidateJobSpec(const job::v1::JobSpec& spec);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_JOB_SERVICE_H_
