// JobService's calls that change or examine an existing job: suspend, resume, retry, update, moves of
// shards, and the list of checkpoints.
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "coordinator/caller.h"
#include "coordinator/job_service.h"
#include "services/status/status.h"

namespace capstan::coordinator {
namespace {

using services::ToGrpcStatus;

// Asks the core on its strand and sends its answer.
template <typename Request, typename Response>
grpc::ServerUnaryReactor* Ask(Coordinator& coordinator, grpc::CallbackServerContext* context,
                              const Request* request, Response* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status status = CheckJobId(request->job_id());
  if (!status.ok()) {
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  // Carried out even if the caller has left.
  coordinator.Post([&coordinator, context, request, response, reactor] {
    if (coordinator.draining()) {
      reactor->Finish(ToGrpcStatus(absl::UnavailableError("the coordinator shuts down")));
      return;
    }
    coordinator.Control(*request, CallerFrom(*context),
                        [response, reactor](const core::Reply& reply) {
                          if (reply.status.ok()) *response = std::get<Response>(reply.response);
                          reactor->Finish(ToGrpcStatus(reply.status));
                        });
  });
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* JobServiceImpl::SuspendJob(grpc::CallbackServerContext* context,
                                                     const job::v1::SuspendJobRequest* request,
                                                     job::v1::SuspendJobResponse* response) {
  return Ask(coordinator_, context, request, response);
}

grpc::ServerUnaryReactor* JobServiceImpl::ResumeJob(grpc::CallbackServerContext* context,
                                                    const job::v1::ResumeJobRequest* request,
                                                    job::v1::ResumeJobResponse* response) {
  return Ask(coordinator_, context, request, response);
}

grpc::ServerUnaryReactor* JobServiceImpl::RetryJob(grpc::CallbackServerContext* context,
                                                   const job::v1::RetryJobRequest* request,
                                                   job::v1::RetryJobResponse* response) {
  return Ask(coordinator_, context, request, response);
}

grpc::ServerUnaryReactor* JobServiceImpl::UpdateJob(grpc::CallbackServerContext* context,
                                                    const job::v1::UpdateJobRequest* request,
                                                    job::v1::UpdateJobResponse* response) {
  return Ask(coordinator_, context, request, response);
}

grpc::ServerUnaryReactor* JobServiceImpl::MoveShard(grpc::CallbackServerContext* context,
                                                    const job::v1::MoveShardRequest* request,
                                                    job::v1::MoveShardResponse* response) {
  return Ask(coordinator_, context, request, response);
}

grpc::ServerUnaryReactor* JobServiceImpl::ListCheckpoints(
    grpc::CallbackServerContext* context, const job::v1::ListCheckpointsRequest* request,
    job::v1::ListCheckpointsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  coordinator_.Post([this, request, response, reactor] {
    const core::Job* job = coordinator_.core().Peek(request->job_id());
    if (job == nullptr) {
      reactor->Finish(
          ToGrpcStatus(absl::NotFoundError(absl::StrCat("no job ", request->job_id()))));
      return;
    }
    for (job::v1::SavedCheckpoint& saved : job->SavedCheckpoints()) {
      *response->add_checkpoints() = std::move(saved);
    }
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

}  // namespace capstan::coordinator
