// One Exchange stream of raw messages: writes queue up, reads are handed to the strand.
//
// gRPC's callbacks only hand work over. At most kReadAhead messages wait for the strand; the
// window of the connection does the rest.
//
// Threads: Send, Cancel and ReadOn on the strand. The object lives until OnDone has run.
#ifndef CAPSTAN_EXCHANGE_TRANSPORT_EXCHANGE_STREAM_H_
#define CAPSTAN_EXCHANGE_TRANSPORT_EXCHANGE_STREAM_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
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

class ExchangeStream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  static constexpr int kReadAhead = 4;

  // Called on the strand. After on_done nothing is called; a handler that finds its owner gone
  // returns.
  struct Handlers {
    std::function<void(const grpc::ByteBuffer&)> on_message;
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
  // Time during which messages waited to be taken by gRPC.
  absl::Duration sending() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  ExchangeStream(services::Strand& strand, LiveStreams& live, Handlers handlers)
      : strand_(strand), live_(live), handlers_(std::move(handlers)) {}

  void OnReadDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnWriteDone(bool ok) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone(const grpc::Status& status) override ABSL_LOCKS_EXCLUDED(mu_);
  void HandOver(grpc::ByteBuffer& message);  // leaves it empty
  void ReadOnLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  services::Strand& strand_;
  LiveStreams& live_;
  const Handlers handlers_;
  grpc::ClientContext context_;
  std::shared_ptr<ExchangeStream> self_;  // from Start to OnDone
  grpc::ByteBuffer incoming_;             // of the read under way

  mutable Mutex mu_;
  std::deque<grpc::ByteBuffer> outgoing_ ABSL_GUARDED_BY(mu_);  // front: being written
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;     // no read or write may start any more
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;  // reads go on until the end is noticed
  int unhandled_ ABSL_GUARDED_BY(mu_) = 0;       // messages on their way to the strand
  absl::Duration sending_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();
  absl::Duration sending_since_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();
};

}  // namespace capstan::exchange

#endif  // CAPSTAN_EXCHANGE_TRANSPORT_EXCHANGE_STREAM_H_
