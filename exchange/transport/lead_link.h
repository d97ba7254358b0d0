// The stream of a shard to the lead of its job: parts out, decisions in. One at a time; opening
// again drops the one before, and nothing that it still says is heard.
//
// Threads: all methods on the strand, and the callbacks run on it.
#ifndef CAPSTAN_EXCHANGE_TRANSPORT_LEAD_LINK_H_
#define CAPSTAN_EXCHANGE_TRANSPORT_LEAD_LINK_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "capstan/param_store/v1/param_store.pb.h"
#include "exchange/transport/exchange_stream.h"
#include "grpcpp/generic/generic_stub.h"
#include "services/endpoint/endpoint.h"
#include "services/strand/strand.h"

namespace capstan::exchange {

namespace v1 = param_store::v1;

class LeadLink {
 public:
  struct Handlers {
    std::function<void()> on_open;  // the HelloReply is there
    std::function<void(const v1::StepDecision&)> on_decision;
    std::function<void(const absl::Status&)> on_closed;  // last of all, unless Drop came first
  };
  static constexpr absl::Duration kOpenTimeout = absl::Seconds(10);  // from Open to the HelloReply

  // Both outlive the object.
  LeadLink(services::Strand& strand, const services::Security& security)
      : strand_(strand), security_(security) {}
  ~LeadLink();

  // Never fails at once: what is wrong with the address is told by on_closed.
  void Open(const std::string& address, const v1::Hello& hello, Handlers handlers);
  void Send(const v1::ShardPart& part);
  void Send(const v1::VersionShown& shown);
  void Drop();
  // Once the strand has stopped, off it: waits until gRPC is done with the streams.
  void WaitUntilGone() { live_.WaitForNone(); }

 private:
  struct Call;
  void Send(const v1::ExchangeRequest& request);

  services::Strand& strand_;
  const services::Security& security_;
  LiveStreams live_;
  std::string address_;  // of stub_
  std::unique_ptr<grpc::GenericStub> stub_;
  std::shared_ptr<Call> call_;  // the present one; the strand's closures hold older ones
};

}  // namespace capstan::exchange

#endif  // CAPSTAN_EXCHANGE_TRANSPORT_LEAD_LINK_H_
