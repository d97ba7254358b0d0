#include "exchange/transport/server_stream.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "exchange/transport/shared_memory_key.h"
#include "exchange/wire/byte_buffer.h"
#include "services/security/credentials.h"
#include "services/status/status.h"
#include "services/sync/hand_over.h"

namespace capstan::exchange {
namespace {

shard::StreamId NextId() {
  static std::atomic<shard::StreamId> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

// What all hello alarms are handed over under: a stream may be gone when its alarm rings, so its
// own address cannot stand for it.
constexpr char kHelloAlarms = 0;

}  // namespace

ServerStream::ServerStream(grpc::CallbackServerContext& context, JobDirectory& directory)
    : context_(context),
      directory_(directory),
      id_(NextId()),
      caller_(services::CallerOf(context)) {}

ServerStream* ServerStream::Start(grpc::CallbackServerContext& context, JobDirectory& directory,
                                  absl::Duration hello_timeout) {
  std::shared_ptr<ServerStream> stream(new ServerStream(context, directory));
  stream->self_ = stream;
  shared::Door* const door = directory.door();
  if (door != nullptr && context.client_metadata().count(kSharedMemoryKey) > 0) {
    // Goes with the first message, or with the end of a stream that was refused, when nobody can use
    // it any more.
    const std::string invitation = door->Invite(stream);
    if (!invitation.empty()) context.AddInitialMetadata(kSharedMemoryKey, invitation);
  }
  HandOver(stream.get());
  // The stream may be gone when its alarm rings.
  std::function<void(bool)> ring = [weak = std::weak_ptr<ServerStream>(stream)](bool rang) {
    TakeOver(&kHelloAlarms);
    const auto late = rang ? weak.lock() : nullptr;
    if (late != nullptr) late->EndWithoutHello();
  };
  HandOver(&kHelloAlarms);
  stream->hello_alarm_.Set(absl::ToChronoTime(absl::Now() + hello_timeout), std::move(ring));
  MutexLock lock(stream->mu_);
  stream->ReadOnLocked();
  return stream.get();
}

void ServerStream::ReadOnLocked() {
  if (reading_ || closed_ || unhandled_ >= kReadAhead) return;
  reading_ = true;
  StartRead(&incoming_);
}

void ServerStream::OnReadDone(bool ok) {
  const Reaction reaction(this);
  if (!ok) {
    End(absl::OkStatus(), /*tell_owner=*/true);  // the peer said goodbye, or is gone
    return;
  }
  auto message = std::make_shared<grpc::ByteBuffer>();
  message->Swap(&incoming_);
  std::shared_ptr<StreamOwner> owner;
  {
    MutexLock lock(mu_);
    owner = owner_;
    if (owner != nullptr) ++unhandled_;
  }
  if (owner != nullptr) {
    owner->OnMessage(self_, std::move(message));
  } else if (absl::Status status = Bind(*message); !status.ok()) {
    End(status, /*tell_owner=*/false);
    return;
  }
  // Only now may the next read begin, here or in Handled: the order of the reads is that on the
  // strand.
  MutexLock lock(mu_);
  reading_ = false;
  ReadOnLocked();
}

void ServerStream::EndWithoutHello() {
  {
    MutexLock lock(mu_);
    if (owner_ != nullptr) return;
  }
  End(absl::DeadlineExceededError("no Hello"), /*tell_owner=*/false);
}

absl::Status ServerStream::Bind(const grpc::ByteBuffer& message) {
  const auto bytes = wire::ReceivedBytes::From(message);
  if (!bytes.ok()) return bytes.status();
  auto decoded = wire::DecodeRequest(bytes->pieces());
  if (!decoded.ok()) return absl::DataLossError(decoded.status().message());
  if (decoded->message.has_check() && !decoded->Intact(/*lineage=*/0)) {
    return absl::DataLossError("the check of the Hello differs");
  }
  if (!decoded->message.has_hello()) {
    return absl::InvalidArgumentError("the first message of a stream is a Hello");
  }
  v1::Hello& hello = *decoded->message.mutable_hello();
  if (hello.speaks() != wire::kSpeaks) {
    return absl::UnimplementedError(
        absl::StrCat("the caller speaks exchange ", hello.speaks(), ", this shard speaks exchange ",
                     wire::kSpeaks, ": run one version of Capstan on workers and shards"));
  }
  if (!decoded->message.has_check()) return absl::DataLossError("the Hello has no check");
  if (!v1::StreamKind_IsValid(hello.kind()) || hello.kind() == v1::STREAM_KIND_UNSPECIFIED) {
    return absl::InvalidArgumentError(absl::StrCat("hello.kind: got ", hello.kind()));
  }
  if (absl::Status status = CheckRole(caller_, hello.kind()); !status.ok()) return status;
  std::shared_ptr<StreamOwner> owner = directory_.FindJob(hello.job_id());
  if (owner == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("job ", services::CutText(hello.job_id(), 64), " is not known here (yet)"));
  }
  {
    MutexLock lock(mu_);
    if (closed_) return absl::OkStatus();  // cancelled meanwhile
    invites_ = owner;
    kind_ = hello.kind();
  }
  hello_alarm_.Cancel();
  owner->OnHello(self_, std::move(hello));
  // An end from now on tells the owner; one before could not, and would have come before the Hello.
  // Its strand may have sent weights by now, and the peer may have taken them.
  bool ended = false;
  int64_t taken = -1;
  {
    MutexLock lock(mu_);
    owner_ = owner;
    ended = closed_;
    taken = std::exchange(taken_early_, -1);
  }
  if (taken >= 0) owner->OnWeightsTaken(id_, taken);
  if (ended) owner->OnEnd(id_);
  return absl::OkStatus();
}

void ServerStream::Send(const grpc::ByteBuffer& message, int64_t weights_of, bool last) {
  {
    MutexLock lock(mu_);
    if (closed_) return;
    if (pipe_ == nullptr && !writing_) return WriteLocked({message, weights_of, last});
    outgoing_.push_back({message, weights_of, last});
    if (pipe_ == nullptr) return;
  }
  FillPipe();
}

// ---- Shared memory ----

std::optional<int64_t> ServerStream::RingBytes() {
  std::shared_ptr<StreamOwner> owner;
  v1::StreamKind kind = v1::STREAM_KIND_UNSPECIFIED;
  {
    MutexLock lock(mu_);
    if (closed_) return std::nullopt;
    owner = invites_;
    kind = kind_;
  }
  return owner == nullptr ? std::nullopt : owner->RingBytes(kind);
}

void ServerStream::OnPipe(std::shared_ptr<shared::Pipe> pipe) {
  std::shared_ptr<StreamOwner> owner;
  {
    MutexLock lock(mu_);
    owner = invites_;
  }
  if (owner != nullptr) owner->OnPipe(shared_from_this(), std::move(pipe));
}

bool ServerStream::UsePipe(const std::shared_ptr<shared::Pipe>& pipe,
                           std::function<void(wire::Pieces)> on_message,
                           std::function<void(const absl::Status&)> on_broken) {
  const auto fill = [weak = weak_from_this()] {
    if (const auto self = weak.lock(); self != nullptr) self->FillPipe();
  };
  pipe->Open({std::move(on_message), /*on_peer_began=*/[] {}, fill, std::move(on_broken)});
  {
    MutexLock lock(mu_);
    if (closed_ || pipe_ != nullptr) {
      pipe->Close();
      return false;
    }
    pipe_ = pipe;
    pipe->SetHandledOnStream(handled_);
    // What is queued here has not been given to gRPC, so it goes through the pipe.
    pipe->BeginSending(taken_messages_ + (writing_ ? 1 : 0));
  }
  FillPipe();
  return true;
}

void ServerStream::FillPipe() {
  std::vector<Outgoing> written;  // let go outside the lock
  std::shared_ptr<StreamOwner> owner;
  {
    MutexLock lock(mu_);
    owner = invites_;  // set before there is a pipe, and owner_ perhaps not yet
    while (pipe_ != nullptr && !outgoing_.empty()) {
      const auto bytes = wire::ReceivedBytes::From(outgoing_.front().message);
      // Our own message, so it can be opened.
      if (pipe_->Write(bytes->pieces()) != shared::RingResult::kDone) break;
      ++taken_messages_;
      written.push_back(std::move(outgoing_.front()));
      outgoing_.pop_front();
    }
  }
  for (const Outgoing& message : written) {
    if (message.last) owner->OnWeightsTaken(id_, message.weights_of);
  }
}

void ServerStream::WriteLocked(const Outgoing& next) {
  writing_ = true;
  current_ = next;
  StartWrite(&current_.message);
}

void ServerStream::DropWeights() {
  std::deque<Outgoing> kept, old;  // let go outside the lock
  MutexLock lock(mu_);
  old.swap(outgoing_);
  for (const Outgoing& message : old) {
    if (message.weights_of < 0) kept.push_back(message);
  }
  outgoing_.swap(kept);
}

ServerStream::Writing ServerStream::writing() const {
  MutexLock lock(mu_);
  if (writing_ && current_.weights_of >= 0) return {current_.weights_of, taken_messages_};
  const auto weights =
      std::find_if(outgoing_.begin(), outgoing_.end(),
                   [](const Outgoing& message) { return message.weights_of >= 0; });
  return {weights == outgoing_.end() ? -1 : weights->weights_of, taken_messages_};
}

void ServerStream::OnWriteDone(bool ok) {
  const Reaction reaction(this);
  Outgoing done;  // let go outside the lock
  std::deque<Outgoing> dropped;
  std::shared_ptr<StreamOwner> owner;
  {
    MutexLock lock(mu_);
    writing_ = false;
    ++taken_messages_;
    std::swap(done, current_);
    if (ok && done.last) {
      owner = owner_;
      if (owner == nullptr) taken_early_ = done.weights_of;
    }
    GoOnLocked(ok, &dropped);
  }
  if (owner != nullptr) owner->OnWeightsTaken(id_, done.weights_of);
}

void ServerStream::GoOnLocked(bool ok, std::deque<Outgoing>* dropped) {
  if (closed_) {
    FinishLocked();
  } else if (!ok) {
    dropped->swap(outgoing_);  // OnReadDone or OnCancel ends the stream
  } else if (!outgoing_.empty() && pipe_ == nullptr) {
    const Outgoing next = outgoing_.front();
    outgoing_.pop_front();
    WriteLocked(next);
  }
}

void ServerStream::OnCancel() {
  const Reaction reaction(this);
  End(absl::CancelledError("cancelled"), /*tell_owner=*/true);
}

void ServerStream::End(const absl::Status& status, bool tell_owner) {
  std::shared_ptr<StreamOwner> owner;
  std::deque<Outgoing> dropped;
  std::shared_ptr<shared::Pipe> pipe;  // goes here, or on the strand, if that is using it
  {
    MutexLock lock(mu_);
    if (closed_) return;
    closed_ = true;
    status_ = status;
    owner = owner_;
    pipe.swap(pipe_);
    dropped.swap(outgoing_);
    FinishLocked();
  }
  if (tell_owner && owner != nullptr) owner->OnEnd(id_);
}

void ServerStream::FinishLocked() {
  if (writing_ || finished_) return;
  finished_ = true;
  Finish(services::ToGrpcStatus(status_));
}

void ServerStream::Close(const absl::Status& status) { End(status, /*tell_owner=*/false); }

void ServerStream::Abort() {
  MutexLock lock(mu_);
  if (!done_) context_.TryCancel();
}

void ServerStream::Handled() {
  MutexLock lock(mu_);
  --unhandled_;
  ++handled_;
  if (pipe_ != nullptr) pipe_->SetHandledOnStream(handled_);
  ReadOnLocked();
}

void ServerStream::OnDone() {
  TakeOver(this);
  std::shared_ptr<ServerStream> self = std::move(self_);
  std::shared_ptr<StreamOwner> owner, invites;
  MutexLock lock(mu_);
  done_ = true;
  hello_alarm_.Cancel();
  owner.swap(owner_);
  invites.swap(invites_);
}

}  // namespace capstan::exchange
