// One Exchange stream as the shard sees it: gRPC's reactions only read, write and hand over.
//
// At most kReadAhead messages wait for the job's strand; the connection's window does the rest. The
// first message, the Hello, finds the job. A peer on the same host is invited to go on in shared
// memory (exchange/shared/pipe.h).
//
// Threads: Send, DropWeights, UsePipe, Handled and Close on the job's strand. The object lives until
// gRPC is done with it and nobody refers to it any more.
#ifndef CAPSTAN_EXCHANGE_TRANSPORT_SERVER_STREAM_H_
#define CAPSTAN_EXCHANGE_TRANSPORT_SERVER_STREAM_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "capstan/param_store/v1/param_store.pb.h"
#include "exchange/shard/shard_events.h"
#include "exchange/shared/door.h"
#include "exchange/shared/pipe.h"
#include "exchange/transport/stream_guard.h"
#include "exchange/wire/frame_codec.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "services/sync/mutex.h"

namespace capstan::exchange {

namespace v1 = param_store::v1;

class ServerStream;

// Who takes the messages of the streams of one job. Methods are called on gRPC's threads and only
// hand over.
class StreamOwner {
 public:
  virtual ~StreamOwner() = default;
  virtual void OnHello(std::shared_ptr<ServerStream> stream, v1::Hello hello) = 0;
  // stream->Handled() follows once the message was dealt with.
  virtual void OnMessage(std::shared_ptr<ServerStream> stream,
                         std::shared_ptr<grpc::ByteBuffer> message) = 0;
  // gRPC has taken the last message of a version's weights (Send, `last`), or the pipe has.
  virtual void OnWeightsTaken(shard::StreamId stream, int64_t version) = 0;
  // Never before OnHello. The stream may be one that the owner itself has closed.
  virtual void OnEnd(shard::StreamId stream) = 0;
  // Of a pipe for such a stream; nullopt: the owner uses none. On the door's thread.
  virtual std::optional<int64_t> RingBytes(v1::StreamKind /*kind*/) { return {}; }
  // The stream's peer has mapped it; UsePipe follows. On the door's thread.
  virtual void OnPipe(std::shared_ptr<ServerStream> /*stream*/,
                      std::shared_ptr<shared::Pipe> /*pipe*/) {}
};

class JobDirectory {
 public:
  virtual ~JobDirectory() = default;
  // Null: no such job here. Thread-safe.
  virtual std::shared_ptr<StreamOwner> FindJob(absl::string_view job_id) = 0;
  // Where peers on this host come for shared memory; null: nowhere. Thread-safe.
  virtual shared::Door* door() { return nullptr; }
};

class ServerStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                           public shared::Guest,
                           public std::enable_shared_from_this<ServerStream> {
 public:
  static constexpr int kReadAhead = 4;
  static constexpr absl::Duration kHelloTimeout = absl::Seconds(10);

  // gRPC drives the result until its OnDone. `context` is gRPC's and lives as long. Without a Hello
  // in time the stream ends with DEADLINE_EXCEEDED.
  static ServerStream* Start(grpc::CallbackServerContext& context, JobDirectory& directory,
                             absl::Duration hello_timeout);

  shard::StreamId id() const { return id_; }
  const Caller& caller() const { return caller_; }

  // Queues a message; `weights_of` is the version that it carries, -1: none; `last`: no more of that
  // version follow. Dropped where the stream has ended.
  void Send(const grpc::ByteBuffer& message, int64_t weights_of = -1, bool last = false)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Sends from now on in the pipe, and has it call these. The caller has added it to the strand.
  // False: the stream has ended.
  bool UsePipe(const std::shared_ptr<shared::Pipe>& pipe,
               std::function<void(wire::Pieces)> on_message,
               std::function<void(const absl::Status&)> on_broken) ABSL_LOCKS_EXCLUDED(mu_);
  // Drops queued weights of all versions.
  void DropWeights() ABSL_LOCKS_EXCLUDED(mu_);
  // The version of the oldest weights that are being written or are queued, -1: none; messages that
  // gRPC or the pipe has taken so far.
  struct Writing {
    int64_t version = -1;
    int64_t taken_messages = 0;
  };
  Writing writing() const ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the stream with `status` once the write under way is through; what is queued is dropped.
  void Close(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // For a peer that does not read: ends it at once, unless it has ended.
  void Abort() ABSL_LOCKS_EXCLUDED(mu_);
  // A message given to the owner was dealt with: the next may be read.
  void Handled() ABSL_LOCKS_EXCLUDED(mu_);

  // shared::Guest.
  std::optional<int64_t> RingBytes() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnPipe(std::shared_ptr<shared::Pipe> pipe) override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Outgoing {
    grpc::ByteBuffer message;
    int64_t weights_of = -1;
    bool last = false;
  };

  ServerStream(grpc::CallbackServerContext& context, JobDirectory& directory);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  absl::Status Bind(const grpc::ByteBuffer& message);
  void EndWithoutHello() ABSL_LOCKS_EXCLUDED(mu_);
  // Writes what is queued to the pipe, as far as there is room. On the strand.
  void FillPipe() ABSL_LOCKS_EXCLUDED(mu_);
  void End(const absl::Status& status, bool tell_owner) ABSL_LOCKS_EXCLUDED(mu_);
  void ReadOnLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GoOnLocked(bool ok, std::deque<Outgoing>* dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WriteLocked(const Outgoing& next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  grpc::CallbackServerContext& context_;
  JobDirectory& directory_;
  const shard::StreamId id_;
  const Caller caller_;
  std::shared_ptr<ServerStream> self_;  // from Start to OnDone
  grpc::ByteBuffer incoming_;           // of the read under way
  grpc::Alarm hello_alarm_;

  mutable Mutex mu_;
  std::shared_ptr<StreamOwner> owner_ ABSL_GUARDED_BY(mu_);  // once it was told the Hello
  // The version that was taken while owner_ was being told the Hello; -1: none was.
  int64_t taken_early_ ABSL_GUARDED_BY(mu_) = -1;
  Outgoing current_ ABSL_GUARDED_BY(mu_);               // being written, where writing_
  std::deque<Outgoing> outgoing_ ABSL_GUARDED_BY(mu_);  // behind it
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  int64_t taken_messages_ ABSL_GUARDED_BY(mu_) = 0;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;    // nothing more is read or written
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // Finish was called
  bool done_ ABSL_GUARDED_BY(mu_) = false;      // gRPC is done: context_ is gone
  absl::Status status_ ABSL_GUARDED_BY(mu_);    // to finish with
  int unhandled_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t handled_ ABSL_GUARDED_BY(mu_) = 1;  // messages of the peer: the Hello
  // From before the owner is told the Hello: its answer invites the peer to a pipe.
  std::shared_ptr<StreamOwner> invites_ ABSL_GUARDED_BY(mu_);
  v1::StreamKind kind_ ABSL_GUARDED_BY(mu_) = v1::STREAM_KIND_UNSPECIFIED;
  std::shared_ptr<shared::Pipe> pipe_ ABSL_GUARDED_BY(mu_);  // that messages are sent in
};

}  // namespace capstan::exchange

#endif  // CAPSTAN_EXCHANGE_TRANSPORT_SERVER_STREAM_H_
