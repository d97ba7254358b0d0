#include "exchange/transport/exchange_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "exchange/transport/shared_memory_key.h"
#include "exchange/wire/byte_buffer.h"
#include "services/logging/log.h"
#include "services/sync/hand_over.h"

namespace capstan::exchange {

using services::Log;

constexpr absl::Duration kFirstTry = absl::Milliseconds(1);  // after a dial; doubles
constexpr absl::Duration kLastTry = absl::Milliseconds(50);
constexpr char kMethod[] = "/capstan.param_store.v1.ParamStoreService/Exchange";

void LiveStreams::Add() {
  MutexLock lock(mu_);
  ++live_;
}

void LiveStreams::Remove() {
  MutexLock lock(mu_);
  --live_;
  none_.NotifyAll();  // under the lock: the waiter may free this object as soon as it sees 0
}

void LiveStreams::WaitForNone() {
  MutexLock lock(mu_);
  while (live_ > 0) none_.Wait(mu_);
}

std::shared_ptr<ExchangeStream> ExchangeStream::Start(grpc::GenericStub& stub,
                                                      services::Strand& strand, LiveStreams& live,
                                                      Handlers handlers) {
  std::shared_ptr<ExchangeStream> stream(new ExchangeStream(strand, live, std::move(handlers)));
  stream->self_ = stream;
  live.Add();
  // Connecting is part of the call: the owner bounds it by its own deadline.
  stream->context_.set_wait_for_ready(true);
  if (strand.runs_sources()) stream->context_.AddMetadata(kSharedMemoryKey, "1");
  stub.PrepareBidiStreamingCall(&stream->context_, kMethod, {}, stream.get());
  // Writes and cancellations come from the strand, outside of gRPC's callbacks: the hold keeps
  // OnDone away until the stream is closed.
  stream->AddHold();
  capstan::HandOver(stream.get());
  {
    MutexLock lock(stream->mu_);
    stream->reading_ = true;
    stream->StartRead(&stream->incoming_);
  }
  stream->StartCall();
  return stream;
}

void ExchangeStream::Send(grpc::ByteBuffer message) {
  if (finished_) return;
  if (shares_memory()) {
    if (queue_.empty()) queue_since_ = strand_.Now();
    queue_.push_back(std::move(message));
    return FillPipe();
  }
  MutexLock lock(mu_);
  if (closed_) return;
  outgoing_.push_back(std::move(message));
  if (writing_) return;
  writing_ = true;
  ++sent_;
  sending_since_ = strand_.Now();
  StartWrite(&outgoing_.front());
}

void ExchangeStream::OnWriteDone(bool ok) {
  const Reaction reaction(this);
  // The references that a message holds are let go outside the lock.
  std::deque<grpc::ByteBuffer> done;
  MutexLock lock(mu_);
  if (!ok) {
    done.swap(outgoing_);
  } else {
    done.push_back(std::move(outgoing_.front()));
    outgoing_.pop_front();
  }
  if (!outgoing_.empty() && !closed_) {
    ++sent_;
    StartWrite(&outgoing_.front());
    return;
  }
  done.insert(done.end(), std::make_move_iterator(outgoing_.begin()),
              std::make_move_iterator(outgoing_.end()));
  outgoing_.clear();
  writing_ = false;
  sending_ += strand_.Now() - sending_since_;
}

void ExchangeStream::ReadOnLocked() {
  if (reading_ || closed_) return;
  reading_ = true;
  StartRead(&incoming_);
}

void ExchangeStream::OnReadDone(bool ok) {
  const Reaction reaction(this);
  if (!ok) {
    {
      MutexLock lock(mu_);
      reading_ = false;
      if (closed_) return;
      closed_ = true;
    }
    RemoveHold();
    return;
  }
  bool first = false;
  {
    MutexLock lock(mu_);
    ++unhandled_;
    first = !std::exchange(first_came_, true);
  }
  if (first) {
    const auto& metadata = context_.GetServerInitialMetadata();
    if (const auto it = metadata.find(kSharedMemoryKey); it != metadata.end()) {
      strand_.Post([self = self_, invitation = std::string(it->second.data(), it->second.size())] {
        self->TryDial(invitation, self->strand_.Now(), kFirstTry);
      });
    }
  }
  grpc::ByteBuffer message;
  message.Swap(&incoming_);
  HandOver(message);
  // Only now may the next read begin, here or where a message was handled: the order of the reads
  // is that on the strand.
  MutexLock lock(mu_);
  reading_ = false;
  if (unhandled_ < kReadAhead || cancelled_) ReadOnLocked();
}

void ExchangeStream::HandOver(grpc::ByteBuffer& message) {
  // std::function wants a copyable target; the buffer itself is moved by a shared_ptr.
  auto held = std::make_shared<grpc::ByteBuffer>();
  held->Swap(&message);
  strand_.Post([self = self_, held] {
    const auto bytes = wire::ReceivedBytes::From(*held);
    self->handlers_.on_message(bytes.ok() ? bytes->pieces() : wire::Pieces());
    ++self->handled_;
    if (self->pipe_ != nullptr) self->pipe_->SetHandledOnStream(self->handled_);
    MutexLock lock(self->mu_);
    --self->unhandled_;
    self->ReadOnLocked();
  });
}

void ExchangeStream::Cancel() {
  context_.TryCancel();
  // Without a read under way nothing would notice the end: on a strand that has stopped no message is
  // handled any more.
  MutexLock lock(mu_);
  cancelled_ = true;
  ReadOnLocked();
}

void ExchangeStream::OnDone(const grpc::Status& status) {
  TakeOver(this);
  std::shared_ptr<ExchangeStream> self = std::move(self_);
  strand_.Post([self, status] { self->Finish(status); });
  LiveStreams& live = live_;
  self.reset();
  live.Remove();
}

// What the shard has written before the end of the stream comes before that, as on the stream.
void ExchangeStream::Finish(const grpc::Status& status) {
  finished_ = true;
  dial_.reset();
  if (pipe_ != nullptr) {
    pipe_->Drain();
    pipe_->Close();
  }
  pipe_.reset();
  if (!queue_.empty()) queued_ += strand_.Now() - queue_since_;
  queue_.clear();
  handlers_.on_done(status);
}

absl::Duration ExchangeStream::sending() const {
  const absl::Duration queued = queue_.empty() ? queued_ : queued_ + (strand_.Now() - queue_since_);
  MutexLock lock(mu_);
  return queued + (writing_ ? sending_ + (strand_.Now() - sending_since_) : sending_);
}

// ---- Shared memory ----

void ExchangeStream::TryDial(const std::string& invitation, absl::Duration began,
                             absl::Duration delay) {
  if (finished_) return;
  absl::Status status;
  if (!dial_.has_value()) {
    auto dial = shared::Dial::Start(invitation);
    status = dial.status();
    if (dial.ok()) dial_ = *std::move(dial);
  }
  const bool waits_at_door = dial_.has_value();
  if (waits_at_door) {
    auto pipe = dial_->Try();
    if (pipe.ok()) {
      dial_.reset();
      return UsePipe(*std::move(pipe));
    }
    status = pipe.status();
  }
  if (waits_at_door ? absl::IsNotFound(status) : absl::IsResourceExhausted(status)) {
    if (strand_.Now() - began < shared::Dial::kTimeout) {
      strand_.PostAfter(delay, [self = shared_from_this(), invitation, began, delay] {
        self->TryDial(invitation, began, std::min(2 * delay, kLastTry));
      });
      return;
    }
    status = absl::DeadlineExceededError(absl::StrCat(
        "the shard's door has not answered for ", absl::FormatDuration(shared::Dial::kTimeout)));
  }
  // The usual answer, for a shard on another host. PermissionDenied is one of another user.
  const bool usual = !waits_at_door && absl::IsNotFound(status);
  dial_.reset();
  Log(usual                              ? services::kDebug
      : absl::IsPermissionDenied(status) ? services::kInfo
                                         : services::kWarning,
      "not_shared")
      .Kv("status", status)
      .Limit("not_shared");
}

void ExchangeStream::UsePipe(std::shared_ptr<shared::Pipe> pipe) {
  const std::weak_ptr<ExchangeStream> weak = weak_from_this();
  const auto call = [weak](void (ExchangeStream::*method)()) {
    return [weak, method] {
      if (const auto self = weak.lock(); self != nullptr) ((*self).*method)();
    };
  };
  shared::Pipe::Handlers on;
  on.on_message = [weak](wire::Pieces pieces) {
    if (const auto self = weak.lock(); self != nullptr) self->handlers_.on_message(pieces);
  };
  on.on_peer_began = call(&ExchangeStream::SendInPipe);
  on.on_room = call(&ExchangeStream::FillPipe);
  on.on_broken = [weak](const absl::Status& status) {
    const auto self = weak.lock();
    if (self == nullptr) return;
    Log(services::kWarning, "shared_memory_broken").Kv("status", status);
    self->Cancel();
  };
  pipe->Open(std::move(on));
  pipe->SetHandledOnStream(handled_);
  if (!strand_.Add(pipe)) {
    // No descriptor is free. The shard may send in the pipe by now, so this stream must end.
    Log(services::kWarning, "shared_memory_broken").Kv("status", "no descriptor is free");
    return Cancel();
  }
  pipe_ = std::move(pipe);
}

void ExchangeStream::SendInPipe() {
  std::deque<grpc::ByteBuffer> queued;  // here, and not given to gRPC
  {
    MutexLock lock(mu_);
    if (closed_) return;
    const auto first = outgoing_.begin() + (writing_ ? 1 : 0);
    queued.assign(std::make_move_iterator(first), std::make_move_iterator(outgoing_.end()));
    outgoing_.erase(first, outgoing_.end());
    pipe_->BeginSending(sent_);
  }
  queue_since_ = strand_.Now();
  queue_ = std::move(queued);
  FillPipe();
}

void ExchangeStream::FillPipe() {
  if (queue_.empty()) return;
  while (!queue_.empty()) {
    const auto bytes = wire::ReceivedBytes::From(queue_.front());
    // Our own message, so it can be opened.
    if (pipe_->Write(bytes->pieces()) != shared::RingResult::kDone) return;
    queue_.pop_front();
  }
  queued_ += strand_.Now() - queue_since_;
}

}  // namespace capstan::exchange
