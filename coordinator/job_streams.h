// The streams of JobService. All their state belongs to the strand: gRPC's callbacks only post.
//
// At most one message is being written. Changes meanwhile are sent afterwards in one message with
// the newest state. So a slow reader misses steps in between, but never the end.
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

// A server stream about one job, or about all if the id is empty. It keeps itself alive until gRPC
// is done with it.
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

  // Called once, by the handler. `status`: of the request. If `caller` is set, only the job's owner
  // may read the stream (CheckOwner).
  void Begin(const absl::Status& status, const std::optional<core::Caller>& caller = std::nullopt);
  // Call it on the strand when something has changed or a write is done. Writes the next message,
  // unless one is being written.
  void Continue() {
    if (writing_ || ended_) return;
    // core() commits first, and the commit tells listeners, including this stream. So this stream
    // may have continued before the call returns.
    static_cast<void>(coordinator_.core());
    if (!writing_ && !ended_) WriteNext();
  }
  // Writes the next message, if there is one, or ends the stream. Called on the strand while
  // nothing is being written and everything in the core is durable.
  virtual void WriteNext() = 0;

  // The message must not change until WriteNext is called. Strand only.
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
      const core::Job* const job = self->coordinator_.core().Peek(self->job_id_);
      absl::Status found;
      if (job == nullptr) {
        found = absl::NotFoundError(absl::StrCat("no job ", self->job_id_));
      } else if (caller.has_value()) {
        found = CheckOwner(*job, *caller);
      }
      if (!found.ok()) self->End(services::ToGrpcStatus(found));
    }
    if (!self->ended_) {  // nor was it cancelled meanwhile
      self->coordinator_.Listen(self->job_id_, self.get());
      self->Continue();
    }
  });
}

// The job as it is now, then after changes, at most once per `interval`. Last in its terminal
// state.
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

// Stored lines that match the filter, by time. With `follow` also new lines as they arrive, until
// the job has ended.
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
  std::optional<std::deque<int64_t>> stored_;  // numbers to send, as of the start
  int64_t next_ = 0;                           // the next line after those
  int64_t dropped_ = 0;  // lines that are lost, to be told with the next message
  job::v1::StreamLogsResponse message_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_JOB_STREAMS_H_
