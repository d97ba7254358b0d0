#include "services/node_session/node_session.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "services/check/check.h"
#include "services/clock/clock.h"
#include "services/logging/log.h"
#include "services/security/tokens.h"
#include "services/status/status.h"
#include "services/sync/hand_over.h"

namespace capstan::services {

using node::v1::ConnectRequest;
using node::v1::ConnectResponse;

// One stream. Reactions only record events and wake the session's thread.
class NodeSession::Stream : public grpc::ClientBidiReactor<ConnectRequest, ConnectResponse> {
 public:
  Stream(Mutex& mu, CondVar& changed) : mu_(mu), changed_(changed) {}

  void Open(node::v1::NodeService::Stub& stub) {
    context_.set_wait_for_ready(true);
    stub.async()->Connect(&context_, this);
    AddHold();  // writes are started outside reactions, until Release
    HandOver(this);
    StartRead(&incoming_);
    StartCall();
  }
  // Call it after the last write was started. OnDone follows once reading has ended.
  void Release() { RemoveHold(); }
  void Cancel() { context_.TryCancel(); }

  // The functions below are called on the session's thread with its lock held.
  bool done() const { return done_; }
  bool ended() const { return ended_; }  // nothing more arrives, and nothing can be written
  const grpc::Status& status() const { return status_; }
  bool writing() const { return writing_; }
  bool write_failed() const { return write_failed_; }
  bool readable() const { return !received_.empty(); }
  ConnectResponse TakeReceived() {
    ConnectResponse message = std::move(received_.front());
    received_.pop_front();
    return message;
  }
  // Sets the next message; the one before must have been sent. Call Flush afterwards, without the
  // lock.
  void Prepare(ConnectRequest message) {
    CAPSTAN_CHECK(!writing_);
    outgoing_ = std::move(message);
    writing_ = true;
  }
  void Flush() { StartWrite(&outgoing_); }

  void OnReadDone(bool ok) override {
    const Reaction reaction(this);
    if (!ok) {
      MutexLock lock(mu_);
      ended_ = true;
      changed_.NotifyAll();
      return;
    }
    {
      MutexLock lock(mu_);
      received_.push_back(std::move(incoming_));
      changed_.NotifyAll();
    }
    incoming_.Clear();
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    const Reaction reaction(this);
    MutexLock lock(mu_);
    writing_ = false;
    write_failed_ = !ok;
    changed_.NotifyAll();
  }
  void OnDone(const grpc::Status& status) override {
    TakeOver(this);
    // The session may destroy this object as soon as the lock is free.
    MutexLock lock(mu_);
    status_ = status;
    done_ = true;
    changed_.NotifyAll();
  }

 private:
  Mutex& mu_;
  CondVar& changed_;
  grpc::ClientContext context_;
  ConnectResponse incoming_;
  ConnectRequest outgoing_;
  std::deque<ConnectResponse> received_;
  grpc::Status status_;
  bool ended_ = false;
  bool done_ = false;
  bool writing_ = false;
  bool write_failed_ = false;
};

NodeSession::NodeSession(NodeSessionOptions options, Callbacks callbacks)
    : options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      stub_(node::v1::NodeService::NewStub(options_.channel)),
      resume_key_(MakeResumeKey()) {}

NodeSession::~NodeSession() { Stop(); }

void NodeSession::Start() {
  CAPSTAN_CHECK(!thread_.joinable());
  thread_ = std::thread([this] { Run(); });
}

void NodeSession::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void NodeSession::Notify() {
  MutexLock lock(mu_);
  notified_ = true;
  changed_.NotifyAll();
}

absl::Status NodeSession::Send(ConnectRequest message) {
  MutexLock lock(mu_);
  if (queue_.size() >= options_.max_queued) {
    return absl::ResourceExhaustedError("messages to the coordinator: the queue is full");
  }
  queue_.push_back(std::move(message));
  changed_.NotifyAll();
  return absl::OkStatus();
}

void NodeSession::Run() {
  // Many nodes lose one coordinator at the same moment. They must not all come back at the same
  // moment.
  std::minstd_rand random(static_cast<uint32_t>(
      std::hash<std::string>()(options_.registration.name()) + options_.registration.pid()));
  absl::Duration backoff = options_.initial_backoff;
  while (true) {
    absl::Status end;
    const bool was_registered = RunStream(&end);
    {
      MutexLock lock(mu_);
      if (stopping_) return;
    }
    if (callbacks_.on_lost) callbacks_.on_lost(end);
    if (was_registered) backoff = options_.initial_backoff;
    const double factor = std::uniform_real_distribution<double>(0.8, 1.2)(random);
    const absl::Duration until = MonotonicNow() + backoff * factor;
    backoff = std::min(backoff * 2, options_.max_backoff);
    MutexLock lock(mu_);
    while (!stopping_ && MonotonicNow() < until)
      changed_.WaitWithTimeout(mu_, until - MonotonicNow());
    if (stopping_) return;
  }
}

bool NodeSession::RunStream(absl::Status* end) {
  Stream stream(mu_, changed_);
  stream.Open(*stub_);

  bool was_registered = false;
  bool timed_out = false;
  bool goodbye = false;     // nothing more is written
  bool released = false;    // after Release: OnDone may come
  bool from_queue = false;  // the front of the queue is being written
  absl::Duration deadline = MonotonicNow() + options_.register_timeout;  // later of the goodbye
  bool stop_seen = false;
  absl::Duration heartbeat_interval = absl::Seconds(1);
  absl::Duration next_heartbeat = absl::InfiniteDuration();
  {
    MutexLock lock(mu_);
    ConnectRequest first;
    *first.mutable_register_() = options_.registration;
    first.mutable_register_()->set_last_incarnation(incarnation_);
    first.mutable_register_()->set_resume_key(resume_key_);
    stream.Prepare(std::move(first));
  }
  stream.Flush();

  enum class Do { kNothing, kHandle, kHeartbeat, kFlush, kGoodbye, kCancel, kRelease };
  while (true) {
    Do what = Do::kNothing;
    ConnectResponse message;
    {
      MutexLock lock(mu_);
      while (what == Do::kNothing) {
        if (from_queue && !stream.writing()) {
          if (!stream.write_failed()) queue_.pop_front();
          from_queue = false;
        }
        if (stopping_ && !stop_seen) {
          stop_seen = true;
          deadline =
              MonotonicNow() + (was_registered ? options_.goodbye_timeout : absl::ZeroDuration());
        }
        const bool can_write =
            !stream.writing() && !stream.write_failed() && !stream.ended() && !goodbye;
        const bool can_tell = can_write && was_registered;
        if (stream.readable()) {
          message = stream.TakeReceived();
          what = Do::kHandle;
        } else if (stream.done()) {
          *end = timed_out ? absl::DeadlineExceededError("the coordinator does not answer")
                           : FromGrpcStatus(stream.status());
          if (end->ok()) *end = absl::UnavailableError("the coordinator ended the stream");
          return was_registered;
        } else if (stream.ended() && !released) {
          what = Do::kRelease;
        } else if (MonotonicNow() >= deadline) {
          what = Do::kCancel;
        } else if (stopping_ && can_write) {
          what = Do::kGoodbye;
        } else if (can_tell && (notified_ || MonotonicNow() >= next_heartbeat)) {
          notified_ = false;
          what = Do::kHeartbeat;
        } else if (can_tell && !queue_.empty()) {
          stream.Prepare(queue_.front());
          from_queue = true;
          what = Do::kFlush;
        } else {
          const absl::Duration until = can_tell ? std::min(deadline, next_heartbeat) : deadline;
          changed_.WaitWithTimeout(
              mu_, until == absl::InfiniteDuration() ? until : until - MonotonicNow());
        }
      }
    }
    switch (what) {
      case Do::kNothing:
        break;
      case Do::kHandle:
        if (message.has_registered()) {
          const node::v1::Registered& reply = message.registered();
          if (reply.heartbeat_ms() > 0) {
            heartbeat_interval = absl::Milliseconds(reply.heartbeat_ms());
          }
          was_registered = true;
          if (!stop_seen) deadline = absl::InfiniteDuration();
          next_heartbeat = MonotonicNow();
          incarnation_ = reply.incarnation();
          if (callbacks_.on_registered) callbacks_.on_registered(reply);
        } else if (message.has_set_log_level()) {
          const absl::StatusOr<LogLevel> level = ParseLogLevel(message.set_log_level().level());
          if (level.ok()) SetLogLevel(*level);  // an unknown level is ignored
        } else if (callbacks_.on_message) {
          callbacks_.on_message(message);
        }
        break;
      case Do::kHeartbeat: {
        ConnectRequest request;
        *request.mutable_heartbeat() = callbacks_.make_heartbeat();
        next_heartbeat = MonotonicNow() + heartbeat_interval;
        {
          MutexLock lock(mu_);
          stream.Prepare(std::move(request));
        }
        stream.Flush();
        break;
      }
      case Do::kFlush:
        stream.Flush();
        break;
      case Do::kGoodbye:
        goodbye = true;
        stream.StartWritesDone();
        break;
      case Do::kCancel:
        goodbye = true;
        timed_out = !stop_seen;
        deadline = absl::InfiniteDuration();
        stream.Cancel();
        break;
      case Do::kRelease:
        goodbye = true;
        released = true;
        stream.Release();
        break;
    }
  }
}

}  // namespace capstan::services
