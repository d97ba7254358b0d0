// The streams of JobService. All their state belongs to the strand: gRPC's callbacks only post.
//
// At most one message is being written; what changes meanwhile is told afterwards, newest first of
// all: a reader who is slow misses steps between, never the end.
#ifndef CAPSTAN_COORDINATOR_JOB_STREAMS_H_
#define CAPSTAN_COORDINATOR_JOB_STREAMS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "capstan/job/v1/job_service.grpc.pb.h"
#include "coordinator/coordinator.h"
#include "coordinator/log_filter.h"
#include "services/status/status.h"

namespace capstan::coordinator {

// A server stream about one job, or about all where the id is empty. It keeps itself alive until gRPC is done with it.
template <typename Response>
class JobStream : public grpc::ServerWriteReactor<Response>,
                  public JobListener,
                  public std::enable_shared_from_this<JobStream<Response>> {
 public:
  void OnWriteDone(bool ok) final {
    coordinator_.PostRead([self = this->shared_from_this(), ok] {
      self->writing_ = false;
      if (!ok) {
        self->End(grpc::Status(grpc::StatusCode::CANCELLED, "the caller has gone"));
      } else {
        self->Continue();
      }
    });
  }
  void OnCancel() final {
    coordinator_.Post([self = this->shared_from_this()] {
      self->End(grpc::Status(grpc::StatusCode::CANCELLED, "the caller has gone"));
    });
  }
  void OnDone() final {
    coordinator_.Post([self = this->shared_from_this()] {
      self->coordinator_.Unlisten(self->job_id_, self.get());
      self->self_ = nullptr;
    });
  }
  void OnShutdown() final {
    End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the coordinator shuts down"));
  }

 protected:
  JobStream(Coordinator& coordinator, std::string job_id)
      : coordinator_(coordinator), job_id_(std::move(job_id)) {}

  // Once, by the handler. `status`: of the request. With `caller` the stream is for the job's owner
  // alone (CheckOwner).
  void Begin(const absl::Status& status, const std::optional<core::Caller>& caller = std::nullopt);
  // Something changed, or a write is done: writes the next message, unless one is being written. On
  // the strand.
  void Continue() {
    if (writing_ || ended_) return;
    // What is shown is committed first, and that tells listeners: this stream too, which may have
    // gone on by the time that the call returns.
    static_cast<void>(coordinator_.core());
    if (!writing_ && !ended_) WriteNext();
  }
  // Writes the next message, if there is one, or ends the stream. Nothing is being written, and
  // what the core holds is durable. On the strand.
  virtual void WriteNext() = 0;

  // The message must stay as it is until WriteNext is called. On the strand.
  void Write(const Response& message) {
    writing_ = true;
    this->StartWrite(&message);
  }
  void End(const grpc::Status& status) {
    if (ended_) return;
    ended_ = true;
    this->Finish(status);
  }

  Coordinator& coordinator_;
  const std::string job_id_;
  bool writing_ = false;
  bool ended_ = false;

 private:
  std::shared_ptr<JobStream> self_;
};

template <typename Response>
void JobStream<Response>::Begin(const absl::Status& status,
                                const std::optional<core::Caller>& caller) {
  self_ = this->shared_from_this();
  coordinator_.PostRead([self = self_, status, caller] {
    if (!status.ok()) {
      self->End(services::ToGrpcStatus(status));
      return;
    }
    if (self->coordinator_.draining()) {
      self->OnShutdown();
      return;
    }
    if (!self->job_id_.empty()) {
      const core::JobRecord* const job = self->coordinator_.core().Peek(self->job_id_);
      absl::Status found;
      if (job == nullptr) {
        found = absl::NotFoundError(absl::StrCat("no job ", self->job_id_));
      } else if (caller.has_value()) {
        found = CheckOwner(*job, *caller);
      }
      if (!found.ok()) self->End(services::ToGrpcStatus(found));
    }
    if (!self->ended_) {  // nor cancelled meanwhile
      self->coordinator_.Listen(self->job_id_, self.get());
      self->Continue();
    }
  });
}

// The job now, then after every change at most every `interval`, last in its terminal state.
class WatchStream final : public JobStream<job::v1::WatchJobResponse> {
 public:
  static WatchStream* Start(Coordinator& coordinator, std::string job_id, absl::Duration interval,
                            const absl::Status& status);
  void OnJobChanged(const std::string& job_id) override;

 private:
  WatchStream(Coordinator& coordinator, std::string job_id, absl::Duration interval)
      : JobStream(coordinator, std::move(job_id)), interval_(interval) {}
  void WriteNext() override;

  const absl::Duration interval_;
  bool changed_ = true;  // since the last message
  bool timer_set_ = false;
  absl::Duration due_ = -absl::InfiniteDuration();
  bool last_ = false;  // the message being written is the last one
  job::v1::WatchJobResponse message_;
};

// Stored lines that the filter lets through, by time; with `follow` new ones as they come, until the
// job has ended.
class LogStream final : public JobStream<job::v1::StreamLogsResponse> {
 public:
  static LogStream* Start(Coordinator& coordinator, const job::v1::StreamLogsRequest& request,
                          const core::Caller& caller, const absl::Status& status);
  void OnJobChanged(const std::string& job_id) override;
  void OnLogsAppended() override;

 private:
  LogStream(Coordinator& coordinator, const job::v1::StreamLogsRequest& request, LogFilter filter)
      : JobStream(coordinator, request.job_id()),
        follow_(request.follow()),
        filter_(std::move(filter)) {}
  void WriteNext() override;

  const bool follow_;
  const LogFilter filter_;
  std::optional<std::deque<int64_t>> stored_;  // numbers that were there at the start, to be sent
  int64_t next_ = 0;                           // behind these: the line to look at
  int64_t dropped_ = 0;  // lines that are gone, to be told with the next message
  job::v1::StreamLogsResponse message_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_JOB_STREAMS_H_
