// A proxy for ParamStoreService.Exchange that misbehaves by a seed: whole messages are delayed,
// repeated and overtaken by others, streams break, and (only where a test asks for it) one bit of a
// payload is flipped. What a real network may do to a repeated at-least-once protocol, and no more:
//
//   - Hello and HelloReply go first on their stream, once and at once.
//   - A message that is passed on has the bytes it came with, but for a flipped bit.
//   - The end of a stream is passed on behind all of its messages; a broken one ends with
//     UNAVAILABLE on our caller's side, is cancelled on the shard's, and loses what was under way.
//
// All that is drawn for a message depends on (seed, number of the stream, direction, number of the
// message); which of two messages came first does not depend on the seed alone, so a run with the
// same seed is alike, not equal.
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
  absl::Duration max_delay;  // of a message, drawn evenly from [0, max_delay]; 0: kept in order
  double repeat = 0;         // share of messages that are passed on twice, each at its own time
  // About every so many messages of the proxy a stream breaks instead; 0: never.
  int64_t messages_per_break = 0;
  double flip = 0;         // share of frames, of gradients and of weights, that lose a payload bit
  double flip_header = 0;  // share of messages behind the Hello that lose a bit before the payload
};

// What happened since the start; the sum of two is of two proxies.
struct ProxyCounters {
  int64_t streams = 0;
  int64_t requests = 0;   // messages that came, Hellos among them
  int64_t responses = 0;  // likewise
  int64_t frames = 0;     // of gradients, as they came
  int64_t weights = 0;    // frames of weights, as they came
  int64_t delayed = 0;    // by more than 1 ms
  int64_t repeated = 0;
  int64_t overtaken = 0;  // passed on behind a later message of their stream and direction
  int64_t broken = 0;     // streams
  int64_t lost = 0;       // messages under way on a stream that ended
  int64_t flipped_frames = 0;
  int64_t flipped_weights = 0;
  int64_t flipped_headers = 0;
  int64_t corrupt_acks = 0;  // FrameAcks with a chunk called CORRUPT
  int64_t undecodable = 0;   // messages that the codec refuses: a bug of either side
  int64_t late_hellos = 0;   // a Hello or HelloReply behind another message, or none: likewise
  int64_t refused = 0;       // streams that the shard ended with an error of its own

  ProxyCounters& operator+=(const ProxyCounters& other);
  std::string ToString() const;  // "streams=4 requests=..."
};

struct ProxyOptions {
  services::Endpoint listen;  // a Unix socket in a folder that is ours alone
  services::Endpoint target;  // may come up later: calls wait for it
  uint64_t seed = 0;
  ProxyFaults faults;
};

class ExchangeProxy {
 public:
  // Serves when it returns. What services::Server::Start says.
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
