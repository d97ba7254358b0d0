#include "client/job_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "absl/strings/str_cat.h"
#include "client/text/exit_codes.h"
#include "services/clock/clock.h"
#include "services/files/files.h"
#include "services/security/certificates.h"
#include "services/security/handshake.h"

namespace capstan::client {
namespace {

// A coordinator that is starting now may need this long until it listens.
constexpr absl::Duration kStartPatience = absl::Milliseconds(500);
constexpr absl::Duration kPatience =
    absl::Seconds(1);  // before a person is told that we are waiting
constexpr absl::Duration kLookInterval = absl::Seconds(2);
constexpr int64_t kMaxCertificateBytes = int64_t{1} << 20;

// A stream that ended like this may work again: the coordinator restarts, a network comes back.
bool MayHeal(const absl::Status& status) {
  return status.ok() || absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status) || absl::IsUnknown(status) || absl::IsInternal(status);
}

// The channel reports a certificate that cannot be read.
std::string OwnerOf(const Connection& connection) {
  const services::Security& security = connection.security;
  if (connection.address.kind == services::Endpoint::Kind::kUnix || security.insecure ||
      security.tls_cert.empty()) {
    return "";
  }
  const auto certificate = services::ReadWholeFile(security.tls_cert, kMaxCertificateBytes);
  if (!certificate.ok()) return "";
  const auto identity = services::IdentityOf(*certificate);
  return identity.ok() ? identity->name : "";
}

}  // namespace

std::string NewRequestId() {
  std::random_device random;
  std::string id = "req";
  for (int i = 0; i < 4; ++i) absl::StrAppend(&id, "-", absl::Hex(random(), absl::kZeroPad8));
  return id;
}

absl::StatusOr<std::unique_ptr<JobClient>> JobClient::Connect(const Connection& connection) {
  services::ChannelOptions options;
  options.peer = connection.address;
  options.security = connection.security;
  auto channel = services::MakeChannel(options);
  if (!channel.ok()) return channel.status();
  options.retry = false;
  const auto bulk = services::MakeChannel(options);
  if (!bulk.ok()) return bulk.status();
  return std::unique_ptr<JobClient>(
      new JobClient(*std::move(channel), *bulk, connection.timeout, OwnerOf(connection)));
}

bool JobClient::WaitUntilConnected(absl::Duration timeout) {
  return channel_->WaitForConnected(std::chrono::system_clock::now() +
                                    absl::ToChronoMilliseconds(timeout));
}

absl::Status JobClient::AwaitConnection(const Connection& connection,
                                        const std::function<void()>& patience) {
  const std::string address = connection.address.ToString();
  const absl::Duration begun = MonotonicNow();
  const absl::Duration end = begun + connection.timeout;
  absl::Duration tell = begun + kPatience;
  absl::Duration look = begun + kStartPatience;  // when to look for the reason of the wait
  while (true) {
    const absl::Duration until = std::min({end, tell, look});
    if (WaitUntilConnected(std::max(absl::ZeroDuration(), until - MonotonicNow()))) {
      return absl::OkStatus();
    }
    if (MonotonicNow() >= tell) {
      tell = absl::InfiniteDuration();
      patience();
    }
    if (MonotonicNow() < std::min(end, look)) continue;
    look = MonotonicNow() + kLookInterval;
    const services::Handshake met = services::TryHandshake(
        {.peer = connection.address, .security = connection.security, .timeout = kStartPatience});
    if (met.met == services::Met::kUnfit) {
      return absl::UnavailableError(absl::StrCat("cannot speak with ", address, ": ", met.why));
    }
    if (met.met == services::Met::kAbsent) {
      return absl::UnavailableError(absl::StrCat("no coordinator answers at ", address, ": ",
                                                 met.why, " (--address, CAPSTAN_ADDRESS)"));
    }
    if (MonotonicNow() < end) continue;
    return absl::UnavailableError(absl::StrCat("no coordinator answers at ", address, " within ",
                                               absl::FormatDuration(connection.timeout),
                                               met.why.empty() ? "" : absl::StrCat(": ", met.why),
                                               " (--address, CAPSTAN_ADDRESS, --timeout)"));
  }
}

absl::StatusOr<std::vector<job::v1::Job>> JobClient::ListJobs(job::v1::ListJobsRequest request) {
  std::vector<job::v1::Job> jobs;
  const int wanted = request.limit();
  while (true) {
    auto page = Call(&Stub::ListJobs, request);
    if (!page.ok()) return page.status();
    for (job::v1::Job& job : *page->mutable_jobs()) jobs.push_back(std::move(job));
    const int left = wanted - static_cast<int>(jobs.size());
    if (page->next_page_token().empty() || left <= 0) return jobs;  // limit 0: one page
    request.set_limit(left);
    request.set_page_token(page->next_page_token());
  }
}

absl::StatusOr<job::v1::ListNodesResponse> JobClient::ListNodes() {
  job::v1::ListNodesResponse all;
  job::v1::ListNodesRequest request;
  do {
    auto page = Call(&AdminStub::ListNodes, request);
    if (!page.ok()) return page.status();
    request.set_page_token(page->next_page_token());
    all.MergeFrom(*page);
  } while (!request.page_token().empty());
  all.clear_next_page_token();
  return all;
}

absl::StatusOr<job::v1::Job> JobClient::Get(const std::string& job_id) {
  job::v1::GetJobRequest request;
  request.set_job_id(job_id);
  auto response = Call(&Stub::GetJob, request);
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_job());
}

absl::StatusOr<std::vector<job::v1::LogLine>> JobClient::Problems(const std::string& job_id) {
  job::v1::StreamLogsRequest request;
  request.set_job_id(job_id);
  request.set_level("warning");
  const auto context = services::NewContext(timeout_);
  const auto reader = stub_->StreamLogs(context.get(), request);
  std::vector<job::v1::LogLine> lines;
  job::v1::StreamLogsResponse response;
  while (reader->Read(&response)) lines.push_back(response.line());
  if (const grpc::Status status = reader->Finish(); !status.ok())
    return services::FromGrpcStatus(status);
  return lines;
}

JobWatcher::JobWatcher(JobClient& client, std::string job_id, absl::Duration min_interval)
    : client_(client),
      job_id_(std::move(job_id)),
      min_interval_(min_interval),
      broken_since_(MonotonicNow()),
      thread_([this] { Follow(); }) {}

JobWatcher::~JobWatcher() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    if (call_ != nullptr) call_->TryCancel();
    changed_.NotifyAll();
  }
  thread_.join();
}

JobWatcher::Update JobWatcher::Wait(int64_t seen, absl::Duration timeout) {
  MutexLock lock(mu_);
  if (update_.sequence <= seen) changed_.WaitWithTimeout(mu_, timeout);
  Update update = update_;
  if (broken_since_.has_value()) {
    update.silent = std::max(absl::ZeroDuration(), MonotonicNow() - *broken_since_);
  }
  return update;
}

void JobWatcher::Follow() {
  while (true) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    {
      MutexLock lock(mu_);
      if (stopping_) return;
      call_ = &context;
    }
    job::v1::WatchJobRequest request;
    request.set_job_id(job_id_);
    request.set_min_interval_ms(static_cast<int32_t>(absl::ToInt64Milliseconds(min_interval_)));
    const auto reader = client_.stub().WatchJob(&context, request);
    job::v1::WatchJobResponse response;
    bool terminal = false;
    while (reader->Read(&response)) {
      terminal = IsTerminal(response.job().state());
      MutexLock lock(mu_);
      update_.job = std::move(*response.mutable_job());
      ++update_.sequence;
      broken_since_.reset();
      changed_.NotifyAll();
    }
    const absl::Status status = services::FromGrpcStatus(reader->Finish());
    MutexLock lock(mu_);
    call_ = nullptr;
    update_.last_error = status;
    if (!broken_since_.has_value()) broken_since_ = MonotonicNow();
    if (terminal || stopping_ || !MayHeal(status)) {
      update_.given_up = !status.ok();
      changed_.NotifyAll();
      return;
    }
    changed_.WaitWithTimeout(mu_, absl::Milliseconds(200));  // before the next try
  }
}

}  // namespace capstan::client
