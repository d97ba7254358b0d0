// One Exchange stream of raw messages: writes queue up, reads are handed to the strand.
//
// gRPC's callbacks only hand work over. At most kReadAhead messages wait for the strand; the
// window of the connection does the rest.
//
// If the shard is on this host, and the strand runs sources, both sides go on in shared memory once
// it is mapped (exchange/shared/pipe.h). The gRPC stream stays open, and its end ends both.
//
// Threads: Send, Cancel, sending and shares_memory on the strand. The object lives until OnDone has
// run.
#ifndef CAPSTAN_EXCHANGE_TRANSPORT_EXCHANGE_STREAM_H_
#define CAPSTAN_EXCHANGE_TRANSPORT_EXCHANGE_STREAM_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "exchange/shared/door.h"
#include "exchange/shared/pipe.h"
#include "exchange/wire/frame_codec.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/client_callback.h"
#include "services/strand/strand.h"
#include "services/sync/mutex.h"

namespace capstan::exchange {

// Streams that are not done yet; whoever owns the strand waits here before it goes.
class LiveStreams {
 public:
  void Add();
  void Remove();
  void WaitForNone();

 private:
  Mutex mu_;
  CondVar none_;
  int live_ ABSL_GUARDED_BY(mu_) = 0;
};

class ExchangeStream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                             public std::enable_shared_from_this<ExchangeStream> {
 public:
  static constexpr int kReadAhead = 4;

  // Called on the strand. After on_done nothing is called; a handler that finds its owner gone
  // returns.
  struct Handlers {
    // The pieces are valid during the call. Empty: gRPC could not open the message.
    std::function<void(wire::Pieces)> on_message;
    std::function<void(const grpc::Status&)> on_done;
  };

  // Starts the call. `strand` and `live` outlive the stream, and so does the stub's channel unless
  // other channels with calls do: the last one must not go in one of gRPC's threads, which it joins.
  static std::shared_ptr<ExchangeStream> Start(grpc::GenericStub& stub, services::Strand& strand,
                                               LiveStreams& live, Handlers handlers);

  // Queues a message behind the others; dropped where the stream has ended.
  void Send(grpc::ByteBuffer message) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the stream; on_done follows. Repeatable.
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);
  // Time during which messages waited to be taken by gRPC, or for room in shared memory.
  absl::Duration sending() const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether messages are sent in shared memory.
  bool shares_memory() const { return pipe_ != nullptr && pipe_->sending(); }

 private:
  ExchangeStream(services::Strand& strand, LiveStreams& live, Handlers handlers)
      : strand_(strand), live_(live), handlers_(std::move(handlers)) {}

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone(const grpc::Status& status) override ABSL_LOCKS_EXCLUDED(mu_);
  void HandOver(grpc::ByteBuffer& message);  // leaves it empty
  // On the strand.
  void TryDial(const std::string& invitation, absl::Duration began, absl::Duration delay);
  void UsePipe(std::shared_ptr<shared::Pipe> pipe);
  void SendInPipe() ABSL_LOCKS_EXCLUDED(mu_);
  void FillPipe();
  void Finish(const grpc::Status& status);
  void ReadOnLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  services::Strand& strand_;
  LiveStreams& live_;
  const Handlers handlers_;
  grpc::ClientContext context_;
  std::shared_ptr<ExchangeStream> self_;  // from Start to OnDone
  grpc::ByteBuffer incoming_;             // of the read under way

  // Used on the strand.
  std::optional<shared::Dial> dial_;
  std::shared_ptr<shared::Pipe> pipe_;
  std::deque<grpc::ByteBuffer> queue_;  // to be sent in the pipe
  absl::Duration queue_since_;          // it has not been empty
  absl::Duration queued_ = absl::ZeroDuration();
  int64_t handled_ = 0;  // messages of the stream
  bool finished_ = false;

  mutable Mutex mu_;
  std::deque<grpc::ByteBuffer> outgoing_ ABSL_GUARDED_BY(mu_);  // front: being written
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  int64_t sent_ ABSL_GUARDED_BY(mu_) = 0;  // messages given to gRPC
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;      // no read or write may start any more
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;   // reads go on until the end is noticed
  int unhandled_ ABSL_GUARDED_BY(mu_) = 0;        // messages on their way to the strand
  bool first_came_ ABSL_GUARDED_BY(mu_) = false;  // an invitation comes with the first message only
  absl::Duration sending_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();
  absl::Duration sending_since_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();
};

}  // namespace capstan::exchange

#endif  // CAPSTAN_EXCHANGE_TRANSPORT_EXCHANGE_STREAM_H_
