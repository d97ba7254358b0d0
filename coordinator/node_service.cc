#include "coordinator/node_service.h"

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/registration.h"
#include "services/clock/clock.h"
#include "services/logging/log.h"
#include "services/security/credentials.h"
#include "services/status/status.h"

namespace capstan::coordinator {
namespace {

// A node that does not read this many messages is cut off. It dials again and gets what it lacks.
constexpr size_t kMaxQueued = 1024;
constexpr absl::Duration kRegisterTimeout = absl::Seconds(10);

// One node. It reads one message at a time, the next when the strand has handled the last, so a
// node that sends too much only delays itself. All state belongs to the strand.
class Stream final
    : public grpc::ServerBidiReactor<node::v1::ConnectRequest, node::v1::ConnectResponse>,
      public NodeStream,
      public std::enable_shared_from_this<Stream> {
 public:
  Stream(Coordinator& coordinator, std::optional<services::Identity> caller)
      : coordinator_(coordinator), caller_(std::move(caller)) {}

  void Begin() {
    self_ = shared_from_this();
    coordinator_.Post([self = self_] {
      if (self->coordinator_.draining()) {
        self->Close(absl::UnavailableError("the coordinator shuts down"));
        return;
      }
      self->coordinator_.AddIdle(self.get());
      self->coordinator_.strand().CallAt(MonotonicNow() + kRegisterTimeout, [self] {
        if (self->session_ == 0) {
          self->Close(absl::DeadlineExceededError("the node did not register in time"));
        }
      });
      self->StartRead(&self->request_);
    });
  }

  // ---- gRPC ----
  void OnReadDone(bool ok) override {
    auto read = [self = shared_from_this(), ok] { self->OnRead(ok); };
    if (ok && request_.has_heartbeat()) {
      coordinator_.PostSoon(std::move(read));
    } else {
      coordinator_.Post(std::move(read));
    }
  }
  void OnWriteDone(bool ok) override {
    coordinator_.Post([self = shared_from_this(), ok] { self->OnWritten(ok); });
  }
  void OnCancel() override {
    coordinator_.Post([self = shared_from_this()] {
      self->cancelled_ = true;
      self->Close(absl::CancelledError("the stream broke"));
    });
  }
  void OnDone() override {
    coordinator_.Post([self = shared_from_this()] {
      self->coordinator_.RemoveIdle(self.get());
      if (self->session_ != 0) {
        // Only now it is known whether the node ended the stream or the connection broke.
        self->coordinator_.Disconnect(self->session_, self->half_closed_ && !self->cancelled_);
      }
      self->self_ = nullptr;
    });
  }

  // ---- NodeStream ----
  void Send(const node::v1::ConnectResponse& message) override {
    if (closed_) return;
    if (queue_.size() >= kMaxQueued) {
      Close(absl::ResourceExhaustedError(absl::StrCat(kMaxQueued, " messages wait for this node")));
      return;
    }
    queue_.push_back(message);
    if (queue_.size() == 1) StartWrite(&queue_.front());
  }
  void Close(const absl::Status& status) override {
    if (closed_) return;
    closed_ = true;
    Finish(services::ToGrpcStatus(status));
  }

 private:
  void OnRead(bool ok) {
    if (closed_) return;
    if (!ok) {
      half_closed_ = true;
      // Before the node learns that the stream has ended, because its successor may then use the
      // name.
      if (session_ != 0) coordinator_.Disconnect(session_, /*goodbye=*/false);
      Close(absl::OkStatus());
      return;
    }
    if (session_ == 0) {
      if (request_.message_case() != node::v1::ConnectRequest::kRegister) {
        Close(absl::FailedPreconditionError("the first message is not a registration"));
        return;
      }
      absl::StatusOr<core::NodeConnected> registration =
          ReadRegistration(std::move(*request_.mutable_register_()), caller_);
      if (!registration.ok()) {
        services::Log(services::kWarning, "node_refused")
            .Kv("status", registration.status())
            .Limit("all", absl::Seconds(1));
        Close(registration.status());
        return;
      }
      coordinator_.RemoveIdle(this);
      // session_ is set only afterwards: Connect may send and close before it returns.
      session_ = coordinator_.Connect(*std::move(registration), this);
    } else {
      coordinator_.Receive(session_, std::move(request_));
    }
    request_.Clear();
    if (!closed_) StartRead(&request_);
  }
  void OnWritten(bool ok) {
    queue_.pop_front();
    if (!ok || closed_) return;  // OnCancel follows
    if (!queue_.empty()) StartWrite(&queue_.front());
  }

  Coordinator& coordinator_;
  const std::optional<services::Identity> caller_;  // not set: there was no certificate
  node::v1::ConnectRequest request_;
  std::deque<node::v1::ConnectResponse> queue_;  // the first is being written
  core::SessionId session_ = 0;
  bool closed_ = false;
  bool half_closed_ = false;
  bool cancelled_ = false;
  std::shared_ptr<Stream> self_;
};

}  // namespace

grpc::ServerBidiReactor<node::v1::ConnectRequest, node::v1::ConnectResponse>*
NodeServiceImpl::Connect(grpc::CallbackServerContext* context) {
  const auto stream = std::make_shared<Stream>(coordinator_, services::CallerOf(*context));
  stream->Begin();
  return stream.get();
}

}  // namespace capstan::coordinator
