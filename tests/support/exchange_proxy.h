// A proxy for ParamStoreService.Exchange that misbehaves by a seed. It delays, repeats and reorders
// whole messages, breaks streams, and (only if a test asks for it) flips one bit of a message. This
// is what a real network may do to an at-least-once protocol, and no more:
//
//   - Hello and HelloReply are passed on first on their stream, once and at once.
//   - A message keeps its bytes, except for a flipped bit.
//   - The end of a stream is passed on after all of its messages. A broken stream ends with
//     UNAVAILABLE for the caller, is cancelled at the shard, and loses the messages in flight.
//
// All draws for a message depend on (seed, number of the stream, direction, number of the message).
// Which of two messages comes first does not depend on the seed alone, so runs with the same seed
// are alike but not equal.
//
// Threads: thread-safe.
#ifndef CAPSTAN_TESTS_SUPPORT_EXCHANGE_PROXY_H_
#define CAPSTAN_TESTS_SUPPORT_EXCHANGE_PROXY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/endpoint/endpoint.h"

namespace capstan::tests {

struct ProxyFaults {
  absl::Duration max_delay;  // of a message, drawn evenly from [0, max_delay]; 0: in order
  double repeat = 0;         // share of messages passed on twice, each copy at its own time
  // A stream breaks at about every so many messages of the proxy. 0: never.
  int64_t messages_per_break = 0;
  double flip = 0;         // share of frames (gradients and weights) with a flipped payload bit
  double flip_header = 0;  // share of messages after the Hello with a header bit flipped
};

// Events since the start. The sum of two counters covers two proxies.
struct ProxyCounters {
  int64_t streams = 0;
  int64_t requests = 0;   // messages from callers, including Hellos
  int64_t responses = 0;  // likewise
  int64_t frames = 0;     // of gradients, as received
  int64_t weights = 0;    // frames of weights, as received
  int64_t delayed = 0;    // by more than 1 ms
  int64_t repeated = 0;
  int64_t overtaken = 0;  // passed on after a later message of their stream and direction
  int64_t broken = 0;     // streams
  int64_t lost = 0;       // messages in flight on a stream that ended
  int64_t flipped_frames = 0;
  int64_t flipped_weights = 0;
  int64_t flipped_headers = 0;
  int64_t corrupt_acks = 0;  // FrameAcks that call a chunk CORRUPT
  int64_t undecodable = 0;   // messages that the codec refuses, a bug of either side
  int64_t late_hellos = 0;   // a Hello or HelloReply that is not first, or missing: a bug, too
  int64_t refused = 0;       // streams that the shard itself ended with an error

  ProxyCounters& operator+=(const ProxyCounters& other);
  std::string ToString() const;  // "streams=4 requests=..."
};

struct ProxyOptions {
  services::Endpoint listen;  // a Unix socket in a private folder
  services::Endpoint target;  // may start later; calls wait for it
  uint64_t seed = 0;
  ProxyFaults faults;
};

class ExchangeProxy {
 public:
  // Serves when it returns. Errors are those of services::Server::Start.
  static absl::StatusOr<std::unique_ptr<ExchangeProxy>> Start(const ProxyOptions& options);
  // Breaks all streams.
  ~ExchangeProxy();
  ExchangeProxy(const ExchangeProxy&) = delete;
  ExchangeProxy& operator=(const ExchangeProxy&) = delete;

  ProxyCounters counters() const;

 private:
  struct Impl;
  explicit ExchangeProxy(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace capstan::tests

#endif  // CAPSTAN_TESTS_SUPPORT_EXCHANGE_PROXY_H_
