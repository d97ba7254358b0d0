#include "coordinator/job_streams.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "services/clock/clock.h"
#include "services/status/status.h"

namespace capstan::coordinator {

WatchStream* WatchStream::Start(Coordinator& coordinator, std::string job_id,
                                absl::Duration interval, const absl::Status& status) {
  std::shared_ptr<WatchStream> stream(new WatchStream(coordinator, std::move(job_id), interval));
  stream->Begin(status);
  return stream.get();
}

void WatchStream::OnJobChanged(const std::string&) {
  changed_ = true;
  Continue();
}

void WatchStream::WriteNext() {
  if (last_) {
    End(grpc::Status::OK);
    return;
  }
  if (!changed_) return;
  const absl::StatusOr<job::v1::Job> job = coordinator_.core().GetJob(job_id_);
  if (!job.ok()) {
    End(services::ToGrpcStatus(job.status()));
    return;
  }
  last_ = coordinator_.core().HasEnded(job_id_);
  const absl::Duration now = MonotonicNow();
  if (!last_ && now < due_) {
    if (timer_set_) return;
    timer_set_ = true;
    coordinator_.strand().CallAt(due_, [self = shared_from_this(), this] {
      timer_set_ = false;
      Continue();
    });
    return;
  }
  due_ = now + interval_;
  changed_ = false;
  *message_.mutable_job() = *job;
  Write(message_);
}

LogStream* LogStream::Start(Coordinator& coordinator, const job::v1::StreamLogsRequest& request,
                            const core::Caller& caller, const absl::Status& status) {
  absl::StatusOr<LogFilter> filter = LogFilter::Create(request);
  const absl::Status refused = status.ok() ? filter.status() : status;
  std::shared_ptr<LogStream> stream(
      new LogStream(coordinator, request, filter.ok() ? *std::move(filter) : LogFilter()));
  stream->Begin(refused, caller);
  return stream.get();
}

void LogStream::OnJobChanged(const std::string&) { Continue(); }

void LogStream::OnLogsAppended() { Continue(); }

void LogStream::WriteNext() {
  const core::LogBuffer* logs = coordinator_.core().Logs(job_id_);
  if (logs == nullptr) {  // the job was forgotten meanwhile
    End(grpc::Status::OK);
    return;
  }
  if (!stored_.has_value()) {
    const std::vector<int64_t> numbers = filter_.InOrder(*logs);
    stored_.emplace(numbers.begin(), numbers.end());
    next_ = logs->next();
    if (!filter_.has_tail()) dropped_ = logs->dropped();
  }
  const job::v1::LogLine* line = nullptr;
  for (; !stored_->empty() && line == nullptr; stored_->pop_front()) {
    line = logs->Find(stored_->front());
    if (line == nullptr) ++dropped_;  // it was dropped meanwhile
  }
  if (line == nullptr && follow_) {
    dropped_ += std::max<int64_t>(0, logs->dropped() - next_);
    next_ = std::max(next_, logs->dropped());
    for (; next_ < logs->next() && line == nullptr; ++next_) {
      line = logs->Find(next_);
      if (!filter_.Matches(*line)) line = nullptr;
    }
  }
  const bool over = line == nullptr && (!follow_ || coordinator_.core().HasEnded(job_id_));
  if (line == nullptr && !(over && dropped_ > 0)) {
    if (over) End(grpc::Status::OK);
    return;
  }
  message_.Clear();
  if (line != nullptr) *message_.mutable_line() = *line;
  message_.set_dropped(std::exchange(dropped_, 0));
  Write(message_);
}

}  // namespace capstan::coordinator
