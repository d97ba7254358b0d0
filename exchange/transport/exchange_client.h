// ExchangeClient: sender::Core over gRPC, one stream on a connection of its own for each OpenStream.
//
// Threads: all methods, the destructor too, on the strand, or after it has stopped. The destructor
// ends the streams and waits for gRPC to let go.
#ifndef CAPSTAN_EXCHANGE_TRANSPORT_EXCHANGE_CLIENT_H_
#define CAPSTAN_EXCHANGE_TRANSPORT_EXCHANGE_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "exchange/exchange.h"
#include "exchange/sender/core.h"
#include "services/endpoint/endpoint.h"
#include "services/strand/strand.h"
#include "training/chunks/flat_layout.h"

namespace capstan::exchange {

struct ExchangeClientOptions {
  sender::CoreOptions core;
  services::Security security;  // of the connections
};

class ExchangeClient final : public Exchange {
 public:
  // Borrows layout and strand.
  ExchangeClient(const training::FlatLayout& layout, ExchangeClientOptions options,
                 services::Strand& strand, ExchangeCallbacks callbacks);
  ~ExchangeClient() override;

  absl::Status Open(const Route& route) override;
  void PushPrefix(int64_t step, const training::LaneBlock& block,
                  std::shared_ptr<const FloatBuffer> gradient, int64_t ready_words) override;
  void SendSeal(int64_t step, const training::LaneBlock& block,
                const training::SealSums& sums) override;
  void SendLaneSeal(int64_t step, int32_t lane, const training::SealSums& sums,
                    int64_t staleness) override;
  void Skip(int64_t step, int32_t lane) override;
  void AskForWeights(int64_t step, int32_t lane) override;
  void SendEvaluation(int64_t version, int64_t block, const training::SealSums& sums) override;
  std::string Waiting() const override;
  bool connected() const override;
  ExchangeStats stats() const override;

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;  // handlers hold it weakly; the last one is here
};

}  // namespace capstan::exchange

#endif  // CAPSTAN_EXCHANGE_TRANSPORT_EXCHANGE_CLIENT_H_
