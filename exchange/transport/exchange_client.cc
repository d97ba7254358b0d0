#include "exchange/transport/exchange_client.h"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "exchange/transport/exchange_stream.h"
#include "exchange/wire/byte_buffer.h"
#include "grpcpp/channel.h"
#include "services/channel/channel.h"
#include "services/logging/log.h"
#include "services/status/status.h"

namespace capstan::exchange {

using services::Log;

class ExchangeClient::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(const training::FlatLayout& layout, ExchangeClientOptions options, services::Strand& strand,
       ExchangeCallbacks callbacks)
      : layout_(layout),
        options_(std::move(options)),
        strand_(strand),
        callbacks_(std::move(callbacks)),
        core_(layout, options_.core) {}

  const sender::Core& core() const { return core_; }
  services::Strand& strand() { return strand_; }

  void Deliver(const sender::Event& event) {
    for (const sender::Effect& effect : core_.Step(event, strand_.Now())) {
      std::visit([this](const auto& e) { Carry(e); }, effect);
    }
    SetTimer();
  }

  absl::Status Open(const Route& route) {
    if (route.lineage == core_.lineage()) return absl::OkStatus();
    absl::Status status = sender::CheckRoute(layout_, route);
    if (!status.ok()) return status;
    std::map<Way, std::unique_ptr<grpc::GenericStub>> stubs;
    for (size_t shard = 0; shard < route.shards.size(); ++shard) {
      status = AddStub(route, static_cast<int32_t>(shard), v1::STREAM_KIND_DATA, stubs);
      if (!status.ok()) return status;
    }
    if (route.shards.size() > 1) {
      status = AddStub(route, 0, v1::STREAM_KIND_CONTROL, stubs);
      if (!status.ok()) return status;
    }
    // The old channels stay until the new streams are open: the end of the last channel joins gRPC's
    // threads, and a stream that ends late would bring it about on one of them.
    stubs_.swap(stubs);
    Deliver(sender::RouteGiven{route});
    return absl::OkStatus();
  }

  // Ends all streams and waits for gRPC to let go; the channels stay until then.
  void Close() {
    for (const auto& entry : streams_) entry.second->Cancel();
    live_.WaitForNone();
  }

  absl::Duration sending() const {
    absl::Duration sending = ended_sending_;
    for (const auto& entry : streams_) sending += entry.second->sending();
    return sending;
  }
  int64_t SharedStreams() const {
    return std::count_if(streams_.begin(), streams_.end(),
                         [](const auto& entry) { return entry.second->shares_memory(); });
  }

 private:
  using Way = std::pair<int32_t, v1::StreamKind>;  // to a shard

  absl::Status AddStub(const Route& route, int32_t shard, v1::StreamKind kind,
                       std::map<Way, std::unique_ptr<grpc::GenericStub>>& stubs) const {
    services::ChannelOptions channel;
    absl::StatusOr<services::Endpoint> endpoint =
        services::ParseEndpoint(route.shards[shard].address);
    if (!endpoint.ok()) return endpoint.status();
    channel.peer = *std::move(endpoint);
    channel.security = options_.security;
    channel.peer_role = services::Role::kParamStore;
    channel.max_receive_bytes = wire::kMaxMessageBytes;
    channel.retry = false;
    channel.own_connection = true;
    channel.min_backoff = options_.core.min_backoff;
    channel.max_backoff = options_.core.max_backoff;
    absl::StatusOr<std::shared_ptr<grpc::Channel>> made = services::MakeChannel(channel);
    if (!made.ok()) return made.status();
    stubs[{shard, kind}] = std::make_unique<grpc::GenericStub>(*made);
    return absl::OkStatus();
  }

  void Carry(const sender::OpenStream& e) {
    std::weak_ptr<Impl> weak = weak_from_this();
    ExchangeStream::Handlers handlers;
    handlers.on_message = [weak, id = e.stream](wire::Pieces message) {
      if (auto self = weak.lock()) self->OnMessage(id, message);
    };
    handlers.on_done = [weak, id = e.stream](const grpc::Status& status) {
      if (auto self = weak.lock()) self->OnDone(id, services::FromGrpcStatus(status));
    };
    streams_[e.stream] =
        ExchangeStream::Start(*stubs_.at({e.shard, e.kind}), strand_, live_, std::move(handlers));
  }
  void Carry(const sender::SendMessage& e) {
    const auto stream = streams_.find(e.stream);
    if (stream != streams_.end()) stream->second->Send(wire::MakeByteBuffer(e.bytes, {}));
  }
  void Carry(const sender::SendFrame& e) {
    const auto stream = streams_.find(e.stream);
    if (stream == streams_.end()) return;
    sender::Core::Frame frame = core_.Encode(e);
    const wire::OutgoingBytes payload{frame.payload, std::move(frame.owner)};
    stream->second->Send(wire::MakeByteBuffer(frame.prefix, {&payload, 1}));
  }
  void Carry(const sender::CancelStream& e) { streams_.at(e.stream)->Cancel(); }
  void Carry(const sender::DropStream& e) {
    const auto stream = streams_.find(e.stream);
    ended_sending_ += stream->second->sending();
    stream->second->Cancel();
    streams_.erase(stream);
  }
  // The callback may open another lineage.
  void Carry(const sender::UseWeights& e) { callbacks_.on_weights(e.weights); }
  void Carry(const sender::Fail& e) {
    if (callbacks_.on_failed) callbacks_.on_failed(e.status);
  }
  // A shard that is done with the job ends its streams. That is no error, so the line has no status.
  void Carry(const sender::NoteStreamEnd& e) {
    const std::string& kind = v1::StreamKind_Name(e.kind);
    Log(e.expected ? services::kInfo : services::kWarning,
        e.expected ? "exchange_ended" : "exchange_lost")
        .Kv("shard", e.shard)
        .Kv("node", e.node)
        .Kv("kind", kind)
        .Kv(e.expected ? "reason" : "status",
            e.expected ? std::string(e.status.message()) : e.status.ToString())
        .Limit(absl::StrCat(e.shard, "/", kind));
  }
  void Carry(const sender::NoteWrongSums& e) {
    Log(services::kWarning, "checksum_renewed")
        .Kv("shard", e.shard)
        .Kv("step", e.step)
        .Kv("first_chunk", e.first_chunk)
        .Kv("wrong", e.wrong);
  }

  void Carry(const sender::NoteReplicaDiffers& e) {
    Log(services::kWarning, "replica_differs")
        .Kv("shard", e.shard)
        .Kv("node", e.node)
        .Kv("version", e.version)
        .Kv("chunk", e.chunk);
  }

  void OnMessage(sender::StreamId id, wire::Pieces message) {
    if (streams_.count(id) > 0) Deliver(sender::MessageArrived{id, message});
  }

  void OnDone(sender::StreamId id, absl::Status status) {
    const auto stream = streams_.find(id);
    if (stream == streams_.end()) return;
    ended_sending_ += stream->second->sending();
    const std::shared_ptr<ExchangeStream> ended = std::move(stream->second);
    streams_.erase(stream);
    Deliver(sender::StreamEnded{id, std::move(status)});
  }

  void SetTimer() {
    const absl::Duration due = core_.NextDeadline();
    if (due >= timer_at_) return;
    timer_at_ = due;
    std::weak_ptr<Impl> weak = weak_from_this();
    strand_.PostAfter(due - strand_.Now(), [weak, due] {
      auto self = weak.lock();
      if (self == nullptr || self->timer_at_ != due) return;
      self->timer_at_ = absl::InfiniteDuration();
      self->Deliver(sender::Tick{});
    });
  }

  const training::FlatLayout& layout_;
  const ExchangeClientOptions options_;
  services::Strand& strand_;
  const ExchangeCallbacks callbacks_;
  sender::Core core_;
  std::map<Way, std::unique_ptr<grpc::GenericStub>> stubs_;
  std::map<sender::StreamId, std::shared_ptr<ExchangeStream>> streams_;
  absl::Duration ended_sending_ = absl::ZeroDuration();
  absl::Duration timer_at_ = absl::InfiniteDuration();
  LiveStreams live_;
};

ExchangeClient::ExchangeClient(const training::FlatLayout& layout, ExchangeClientOptions options,
                               services::Strand& strand, ExchangeCallbacks callbacks)
    : impl_(std::make_shared<Impl>(layout, std::move(options), strand, std::move(callbacks))) {}

ExchangeClient::~ExchangeClient() { impl_->Close(); }

absl::Status ExchangeClient::Open(const Route& route) { return impl_->Open(route); }

void ExchangeClient::PushPrefix(int64_t step, const training::LaneBlock& block,
                                std::shared_ptr<const FloatBuffer> gradient, int64_t ready_words) {
  impl_->Deliver(sender::BlockReady{step, block, std::move(gradient), ready_words});
}

void ExchangeClient::SendSeal(int64_t step, const training::LaneBlock& block,
                              const training::SealSums& sums) {
  impl_->Deliver(sender::SealReady{step, block, sums});
}

void ExchangeClient::SendLaneSeal(int64_t step, int32_t lane, const training::SealSums& sums,
                                  int64_t staleness) {
  impl_->Deliver(sender::SealReady{step, {lane, 1}, sums, staleness});
}

void ExchangeClient::Skip(int64_t step, int32_t lane) {
  impl_->Deliver(sender::SkipReady{step, lane});
}

void ExchangeClient::AskForWeights(int64_t step, int32_t lane) {
  impl_->Deliver(sender::WeightsWanted{step, lane});
}

void ExchangeClient::SendEvaluation(int64_t version, int64_t block,
                                    const training::SealSums& sums) {
  impl_->Deliver(sender::EvaluationReady{version, block, sums});
}

bool ExchangeClient::connected() const { return impl_->core().connected(); }

std::string ExchangeClient::Waiting() const { return impl_->core().Waiting(impl_->strand().Now()); }

ExchangeStats ExchangeClient::stats() const {
  ExchangeStats stats = impl_->core().stats();
  stats.push_seconds = absl::ToDoubleSeconds(impl_->sending());
  stats.shared_streams = impl_->SharedStreams();
  return stats;
}

}  // namespace capstan::exchange
