#include "coordinator/job_streams.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/status/status.h"

namespace capstan::coordinator {

template <typename Response>
void JobStream<Response>::Begin(const absl::Status& status) {
  self_ = this->shared_from_this();
  coordinator_.Post([self = self_, status] {
    if (!status.ok()) {
      self->End(services::ToGrpcStatus(status));
    } else if (self->coordinator_.draining()) {
      self->OnShutdown();
    } else if (self->coordinator_.core().Peek(self->job_id_) == nullptr) {
      self->End(
          services::ToGrpcStatus(absl::NotFoundError(absl::StrCat("no job ", self->job_id_))));
    } else if (!self->ended_) {  // cancelled meanwhile
      self->coordinator_.Listen(self->job_id_, self.get());
      self->Continue();
    }
  });
}

WatchStream* WatchStream::Start(Coordinator& coordinator, std::string job_id,
                                absl::Duration interval, const absl::Status& status) {
  std::shared_ptr<WatchStream> stream(new WatchStream(coordinator, std::move(job_id), interval));
  stream->Begin(status);
  return stream.get();
}

void WatchStream::OnJobChanged() {
  changed_ = true;
  if (!ended_) Continue();
}

void WatchStream::Continue() {
  if (writing_) return;
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
      if (!ended_) Continue();
    });
    return;
  }
  due_ = now + interval_;
  changed_ = false;
  *message_.mutable_job() = *job;
  Write(message_);
}

LogStream* LogStream::Start(Coordinator& coordinator, std::string job_id, bool follow,
                            const absl::Status& status) {
  std::shared_ptr<LogStream> stream(new LogStream(coordinator, std::move(job_id), follow));
  stream->Begin(status);
  return stream.get();
}

void LogStream::OnJobChanged() {
  if (!ended_) Continue();
}

void LogStream::OnLogsAppended() {
  if (!ended_) Continue();
}

void LogStream::Continue() {
  if (writing_) return;
  const core::LogBuffer* logs = coordinator_.core().Logs(job_id_);
  if (logs == nullptr) {  // forgotten meanwhile
    End(grpc::Status::OK);
    return;
  }
  if (end_ < 0) end_ = logs->next();
  core::LogBuffer::Chunk chunk = logs->Read(next_, 1);
  if (chunk.skipped > 0) {
    message_.Clear();
    job::v1::LogLine& line = *message_.mutable_line();
    line.set_role(common::v1::ROLE_COORDINATOR);
    line.set_level("warning");
    line.set_text(absl::StrCat(chunk.skipped, " older lines are gone"));
    next_ += chunk.skipped;
    Write(message_);
    return;
  }
  if (!chunk.lines.empty() && (follow_ || next_ < end_)) {
    *message_.mutable_line() = std::move(chunk.lines[0]);
    next_ = chunk.next;
    Write(message_);
    return;
  }
  if (!follow_ || coordinator_.core().HasEnded(job_id_)) End(grpc::Status::OK);
}

}  // namespace capstan::coordinator
