#include "coordinator/job_service.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/caller.h"
#include "coordinator/event_stream.h"
#include "coordinator/job_streams.h"
#include "services/status/status.h"
#include "training/spec/validate.h"

namespace capstan::coordinator {
namespace {

using services::FieldViolation;
using services::ToGrpcStatus;

constexpr int kMaxListed = 1000;
constexpr int kDefaultListed = 100;
constexpr size_t kMaxListBytes = 4 * 1024 * 1024 - 1024;  // our clients take 4 MiB
constexpr size_t kPerEntryBytes = 8;                      // overhead of an entry of a list, at most
constexpr int kMaxIntervalMs = 60000;
constexpr int kDefaultIntervalMs = 100;
constexpr size_t kMaxJobIdBytes = 128;
constexpr size_t kMaxNameBytes = 63;  // the limit for an owner, and for a label's key and value
constexpr int kMaxLabels = 32;        // of a job

absl::Status Violated(const std::vector<FieldViolation>& violations) {
  std::vector<std::string> sentences;
  for (const FieldViolation& violation : violations) sentences.push_back(violation.description);
  return services::WithViolations(absl::InvalidArgumentError(absl::StrJoin(sentences, "; ")),
                                  violations);
}

// The filter of a request. Invalid parts are added to `violations`.
core::JobFilter ReadFilter(const job::v1::ListJobsRequest& request,
                           std::vector<FieldViolation>& violations) {
  core::JobFilter filter;
  for (const int state : request.states()) {
    if (!common::v1::JobState_IsValid(state) || state == common::v1::JOB_STATE_UNSPECIFIED) {
      violations.push_back({"states", absl::StrCat("states: ", state, " is not a state")});
      break;
    }
    filter.states.insert(static_cast<common::v1::JobState>(state));
  }
  if (request.owner().size() > kMaxNameBytes) {
    violations.push_back({"owner", absl::StrCat("owner: want at most ", kMaxNameBytes,
                                                " bytes, got ", request.owner().size())});
  }
  filter.owner = request.owner();
  if (request.labels_size() > kMaxLabels) {
    violations.push_back({"labels", absl::StrCat("labels: want at most ", kMaxLabels, ", got ",
                                                 request.labels_size())});
  }
  for (const auto& [key, value] : request.labels()) {
    if (key.size() > kMaxNameBytes || value.size() > kMaxNameBytes) {
      violations.push_back({"labels", absl::StrCat("labels: want keys and values of at most ",
                                                   kMaxNameBytes, " bytes")});
      break;
    }
    filter.labels.emplace(key, value);
  }
  return filter;
}

// A caller that gave up (deadline or connection) needs no work.
bool GivenUp(const grpc::CallbackServerContext& context) { return context.IsCancelled(); }

grpc::Status GivenUpStatus() { return {grpc::StatusCode::CANCELLED, "the caller has gone"}; }

}  // namespace

absl::Status CheckJobId(const std::string& job_id) {
  if (!job_id.empty() && job_id.size() <= kMaxJobIdBytes) return absl::OkStatus();
  return Violated({{"job_id", absl::StrCat("job_id: want 1 to ", kMaxJobIdBytes, " bytes, got ",
                                           job_id.size())}});
}

absl::Status ValidateJobSpec(const job::v1::JobSpec& spec) {
  std::vector<FieldViolation> violations;
  for (const training::spec::Violation& violation : training::spec::Validate(spec)) {
    violations.push_back({violation.path, violation.message});
  }
  return violations.empty() ? absl::OkStatus() : Violated(violations);
}

grpc::ServerUnaryReactor* JobServiceImpl::SubmitJob(grpc::CallbackServerContext* context,
                                                    const job::v1::SubmitJobRequest* request,
                                                    job::v1::SubmitJobResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  std::vector<FieldViolation> violations;
  if (request->request_id().empty()) violations.push_back({"request_id", "request_id: is empty"});
  if (!request->has_spec()) violations.push_back({"spec", "spec: is not set"});
  std::vector<PathPolicy::Claim> claims;
  if (violations.empty()) violations = policy_.Check(request->spec(), &claims);
  if (!violations.empty()) claims.clear();
  coordinator_.Post([this, context, request, response, reactor, violations,
                     claims = std::move(claims)]() mutable {
    const auto submit = [this, context, request, response, reactor, named = std::move(violations)](
                            const absl::Status& checked, const PathPolicy::Found& found) {
      const std::vector<FieldViolation>& violations = named.empty() ? found.violations : named;
      absl::Status status = violations.empty() ? checked : Violated(violations);
      if (coordinator_.draining()) status = absl::UnavailableError("the coordinator shuts down");
      if (!status.ok()) {
        if (metrics_ != nullptr && !violations.empty()) metrics_->OnRejected(status);
        reactor->Finish(ToGrpcStatus(status));
        return;
      }
      if (GivenUp(*context)) {
        reactor->Finish(GivenUpStatus());
        return;
      }
      coordinator_.Submit(request->request_id(), request->spec(), CallerFrom(*context),
                          found.weights_at, [this, response, reactor](const core::Reply& reply) {
                            if (reply.status.ok()) {
                              *response = std::get<job::v1::SubmitJobResponse>(reply.response);
                            } else if (metrics_ != nullptr && !absl::IsUnavailable(reply.status)) {
                              metrics_->OnRejected(reply.status);
                            }
                            reactor->Finish(ToGrpcStatus(reply.status));
                          });
    };
    coordinator_.CheckPaths(std::move(claims), submit);
  });
  return reactor;
}

grpc::ServerUnaryReactor* JobServiceImpl::GetJob(grpc::CallbackServerContext* context,
                                                 const job::v1::GetJobRequest* request,
                                                 job::v1::GetJobResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status status = CheckJobId(request->job_id());
  if (!status.ok()) {
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  coordinator_.PostRead([this, context, request, response, reactor] {
    if (GivenUp(*context)) {
      reactor->Finish(GivenUpStatus());
      return;
    }
    absl::StatusOr<job::v1::Job> job = coordinator_.core().GetJob(request->job_id());
    const absl::Status status = job.status();
    if (status.ok()) *response->mutable_job() = *std::move(job);
    reactor->Finish(ToGrpcStatus(status));
  });
  return reactor;
}

grpc::ServerUnaryReactor* JobServiceImpl::ListJobs(grpc::CallbackServerContext* context,
                                                   const job::v1::ListJobsRequest* request,
                                                   job::v1::ListJobsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  std::vector<FieldViolation> violations;
  if (request->limit() < 0 || request->limit() > kMaxListed) {
    violations.push_back(
        {"limit", absl::StrCat("limit: want 0 to ", kMaxListed, ", got ", request->limit())});
  }
  const core::JobFilter filter = ReadFilter(*request, violations);
  int64_t before = std::numeric_limits<int64_t>::max();
  if (const std::string& token = request->page_token();
      !token.empty() && (!absl::SimpleAtoi(token, &before) || before < 0)) {
    violations.push_back({"page_token", "page_token: want that of the page before"});
  }
  if (!violations.empty()) {
    reactor->Finish(ToGrpcStatus(Violated(violations)));
    return reactor;
  }
  const int limit = request->limit() == 0 ? kDefaultListed : request->limit();
  coordinator_.PostRead([this, context, response, reactor, limit, filter, before] {
    if (GivenUp(*context)) {
      reactor->Finish(GivenUpStatus());
      return;
    }
    const core::CoordinatorCore& core = coordinator_.core();
    // One more than asked for, which tells whether there is another page.
    std::vector<job::v1::Job> jobs = core.ListJobs(limit + 1, filter, before);
    size_t bytes = 0;
    for (job::v1::Job& job : jobs) {
      bytes += job.ByteSizeLong() + kPerEntryBytes;
      const int count = response->jobs_size();
      if (count == limit || (count > 0 && bytes > kMaxListBytes)) {
        const std::string& last = response->jobs(count - 1).job_id();
        response->set_next_page_token(absl::StrCat(core.Peek(last)->sequence()));
        break;
      }
      *response->add_jobs() = std::move(job);
    }
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* JobServiceImpl::CancelJob(grpc::CallbackServerContext* context,
                                                    const job::v1::CancelJobRequest* request,
                                                    job::v1::CancelJobResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status status = CheckJobId(request->job_id());
  if (!status.ok()) {
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  // The job is cancelled even if the caller has left.
  coordinator_.Post([this, context, request, response, reactor] {
    coordinator_.Cancel(request->job_id(), CallerFrom(*context),
                        [response, reactor](const core::Reply& reply) {
                          if (reply.status.ok())
                            *response = std::get<job::v1::CancelJobResponse>(reply.response);
                          reactor->Finish(ToGrpcStatus(reply.status));
                        });
  });
  return reactor;
}

grpc::ServerWriteReactor<job::v1::WatchJobResponse>* JobServiceImpl::WatchJob(
    grpc::CallbackServerContext*, const job::v1::WatchJobRequest* request) {
  absl::Status status = CheckJobId(request->job_id());
  if (request->min_interval_ms() < 0 || request->min_interval_ms() > kMaxIntervalMs) {
    status =
        Violated({{"min_interval_ms", absl::StrCat("min_interval_ms: want 0 to ", kMaxIntervalMs,
                                                   ", got ", request->min_interval_ms())}});
  }
  const int interval_ms =
      request->min_interval_ms() == 0 ? kDefaultIntervalMs : request->min_interval_ms();
  return WatchStream::Start(coordinator_, request->job_id(), absl::Milliseconds(interval_ms),
                            status);
}

grpc::ServerWriteReactor<job::v1::StreamLogsResponse>* JobServiceImpl::StreamLogs(
    grpc::CallbackServerContext* context, const job::v1::StreamLogsRequest* request) {
  return LogStream::Start(coordinator_, *request, CallerFrom(*context),
                          CheckJobId(request->job_id()));
}

grpc::ServerWriteReactor<job::v1::StreamEventsResponse>* JobServiceImpl::StreamEvents(
    grpc::CallbackServerContext*, const job::v1::StreamEventsRequest* request) {
  const absl::Status status =
      request->job_id().empty() ? absl::OkStatus() : CheckJobId(request->job_id());
  return EventStream::Start(coordinator_, request->job_id(), request->follow(), status);
}

}  // namespace capstan::coordinator
