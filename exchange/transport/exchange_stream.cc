#include "exchange/transport/exchange_stream.h"

#include <utility>

#include "services/sync/hand_over.h"

namespace capstan::exchange {

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
  MutexLock lock(mu_);
  if (closed_) return;
  outgoing_.push_back(std::move(message));
  if (writing_) return;
  writing_ = true;
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
  grpc::ByteBuffer message;
  message.Swap(&incoming_);
  {
    MutexLock lock(mu_);
    ++unhandled_;
  }
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
    self->handlers_.on_message(*held);
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
  strand_.Post([self, status] { self->handlers_.on_done(status); });
  LiveStreams& live = live_;
  self.reset();
  live.Remove();
}

absl::Duration ExchangeStream::sending() const {
  MutexLock lock(mu_);
  return writing_ ? sending_ + (strand_.Now() - sending_since_) : sending_;
}

}  // namespace capstan::exchange
