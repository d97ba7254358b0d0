// ExchangeClient: the exchange of one task with the shards of its job, over gRPC.
//
// One DATA stream per shard, each on a connection of its own; with several shards a CONTROL stream
// to the lead besides, so that seals do not wait behind frames. A stream says Hello with the newest
// complete version, waits for HelloReply, then sends what the current step still needs; the dedupe
// of rule R6 makes repeats harmless. Streams that end are opened again:
//   FAILED_PRECONDITION, OUT_OF_RANGE     at the next Open: the view is old
//   INVALID_ARGUMENT, UNIMPLEMENTED       never: on_failed
//   anything else                         after 50 ms, doubled up to 2 s
// A stream that has no HelloReply 10 s after it was opened is ended and opened again.
//
// Copies: a gradient leaves as slices that refer to its buffer; weights are copied once, from the
// received slices into the buffer of their version, each chunk after its checksum was found right.
//
// Threads: all methods, the destructor too, on the strand, or after it has stopped. The destructor
// ends the streams and waits for gRPC to let go.
#ifndef CAPSTAN_PARAM_STORE_CLIENT_EXCHANGE_CLIENT_H_
#define CAPSTAN_PARAM_STORE_CLIENT_EXCHANGE_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "param_store/client/exchange.h"
#include "param_store/client/strand.h"
#include "services/endpoint/endpoint.h"
#include "training/chunks/flat_layout.h"
#include "training/chunks/placement.h"

namespace capstan::param_store::client {

struct ExchangeClientOptions {
  std::string job_id;
  std::string spec_digest;      // 32 bytes
  int32_t rank = 0;             // of the task
  services::Security security;  // of the connections
  absl::Duration min_backoff = absl::Milliseconds(50);
  absl::Duration max_backoff = absl::Seconds(2);
  absl::Duration hello_timeout = absl::Seconds(10);
  int64_t max_payload_bytes = training::kDefaultMaxFramePayloadBytes;  // of a frame; >= one chunk
};

class ExchangeClient final : public Exchange {
 public:
  // Borrows layout and strand.
  ExchangeClient(const training::FlatLayout& layout, ExchangeClientOptions options, Strand& strand,
                 ExchangeCallbacks callbacks);
  ~ExchangeClient() override;

  absl::Status Open(const Route& route) override;
  void PushPrefix(int64_t step, const training::Node& node,
                  std::shared_ptr<const FloatBuffer> gradient, int64_t ready_floats) override;
  void SendSeal(int64_t step, const training::Node& node, const training::SealSums& sums) override;
  void SendEvaluation(int64_t version, int64_t block, const training::SealSums& sums) override;
  std::string Waiting() const override;
  bool connected() const override;
  ExchangeStats stats() const override;

  // Weight buffers that exist: two in a steady state, three where a device still reads an old one.
  int64_t weight_buffers() const;

 private:
  struct Impl;
  const std::shared_ptr<Impl> impl_;  // handlers hold it weakly; the last one is here
};

}  // namespace capstan::param_store::client

#endif  // CAPSTAN_PARAM_STORE_CLIENT_EXCHANGE_CLIENT_H_
