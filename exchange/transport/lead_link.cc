#include "exchange/transport/lead_link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "exchange/wire/byte_buffer.h"
#include "grpcpp/channel.h"
#include "services/channel/channel.h"
#include "services/status/status.h"

namespace capstan::exchange {

struct LeadLink::Call {
  Handlers handlers;
  std::weak_ptr<ExchangeStream> stream;  // which holds this by its handlers
  int64_t lineage = 0;
  bool open = false;
  bool dropped = false;

  void Cancel() {
    if (const auto live = stream.lock(); live != nullptr) live->Cancel();
  }
  void Close(const absl::Status& status) {
    if (std::exchange(dropped, true)) return;
    Cancel();
    handlers.on_closed(status);
  }
};

LeadLink::~LeadLink() = default;

void LeadLink::Open(const std::string& address, const v1::Hello& hello, Handlers handlers) {
  Drop();
  auto call = std::make_shared<Call>();
  call->handlers = std::move(handlers);
  call->lineage = hello.lineage();
  call_ = call;
  if (stub_ == nullptr || address_ != address) {
    services::ChannelOptions options;
    options.security = security_;
    options.peer_role = services::Role::kParamStore;
    options.max_receive_bytes = static_cast<int>(wire::kMaxMessageBytes);
    options.retry = false;  // parts and decisions are repeated by their owners
    absl::Status status;
    auto peer = services::ParseEndpoint(address);
    if (peer.ok()) {
      options.peer = *std::move(peer);
      auto channel = services::MakeChannel(options);
      if (channel.ok()) {
        stub_ = std::make_unique<grpc::GenericStub>(*std::move(channel));
        address_ = address;
      } else {
        status = channel.status();
      }
    } else {
      status = peer.status();
    }
    if (!status.ok()) {
      stub_.reset();
      strand_.Post([call, status] { call->Close(status); });
      return;
    }
  }
  ExchangeStream::Handlers on;
  on.on_message = [call](wire::Pieces message) {
    if (call->dropped) return;
    const auto decoded = wire::DecodeResponse(message);
    if (!decoded.ok()) return call->Close(absl::DataLossError(decoded.status().message()));
    if (decoded->message.has_hello() && !decoded->message.has_check()) {
      return call->Close(absl::UnimplementedError(
          absl::StrCat("the lead speaks exchange ", decoded->message.hello().speaks(),
                       ", this shard speaks exchange ", wire::kSpeaks,
                       ": run one version of Capstan on all shards")));
    }
    if (!decoded->Intact(call->lineage)) {
      return call->Close(absl::DataLossError("a message whose check differs"));
    }
    if (decoded->message.has_hello()) {
      if (!std::exchange(call->open, true)) call->handlers.on_open();
    } else if (decoded->message.has_decision() && call->open) {
      call->handlers.on_decision(decoded->message.decision());
    } else {
      call->Close(absl::InternalError("the lead said something that is not for a shard"));
    }
  };
  on.on_done = [call](const grpc::Status& status) {
    call->Close(status.ok() ? absl::UnavailableError("the lead ended the stream")
                            : services::FromGrpcStatus(status));
  };
  const auto stream = ExchangeStream::Start(*stub_, strand_, live_, std::move(on));
  call->stream = stream;
  v1::ExchangeRequest request;
  *request.mutable_hello() = hello;
  request.mutable_hello()->set_speaks(wire::kSpeaks);
  stream->Send(wire::MakeByteBuffer(request, call->lineage));
  strand_.PostAfter(kOpenTimeout, [call] {
    if (!call->open) call->Close(absl::DeadlineExceededError("the lead does not answer"));
  });
}

void LeadLink::Send(const v1::ShardPart& part) {
  v1::ExchangeRequest request;
  *request.mutable_part() = part;
  Send(request);
}

void LeadLink::Send(const v1::VersionShown& shown) {
  v1::ExchangeRequest request;
  *request.mutable_shown() = shown;
  Send(request);
}

void LeadLink::Send(const v1::ExchangeRequest& request) {
  if (call_ == nullptr || call_->dropped) return;
  const auto stream = call_->stream.lock();
  if (stream == nullptr) return;
  stream->Send(wire::MakeByteBuffer(request, call_->lineage));
}

void LeadLink::Drop() {
  if (call_ == nullptr) return;
  call_->dropped = true;
  call_->Cancel();
  call_.reset();
}

}  // namespace capstan::exchange
