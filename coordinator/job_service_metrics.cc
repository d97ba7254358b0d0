// JobService.GetMetrics: the history of a job.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/metric_history.h"
#include "coordinator/job_service.h"
#include "services/status/status.h"

namespace capstan::coordinator {

grpc::ServerUnaryReactor* JobServiceImpl::GetMetrics(grpc::CallbackServerContext* context,
                                                     const job::v1::GetMetricsRequest* request,
                                                     job::v1::GetMetricsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (request->max_points() < 0) {
    const std::string text =
        absl::StrCat("max_points: want 0 or more, got ", request->max_points());
    reactor->Finish(services::ToGrpcStatus(
        services::WithViolations(absl::InvalidArgumentError(text), {{"max_points", text}})));
    return reactor;
  }
  coordinator_.PostRead([this, request, response, reactor] {
    const core::Job* const job = coordinator_.core().Peek(request->job_id());
    if (job == nullptr) {
      reactor->Finish(
          services::ToGrpcStatus(absl::NotFoundError(absl::StrCat("no job ", request->job_id()))));
      return;
    }
    for (job::v1::MetricPoint& point : job->history().metrics().Thinned(request->max_points())) {
      *response->add_points() = std::move(point);
    }
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

}  // namespace capstan::coordinator
