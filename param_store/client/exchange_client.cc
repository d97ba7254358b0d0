#include "param_store/client/exchange_client.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "capstan/param_store/v1/param_store.pb.h"
#include "grpcpp/channel.h"
#include "param_store/client/exchange_stream.h"
#include "param_store/client/weight_assembly.h"
#include "param_store/wire/byte_buffer.h"
#include "param_store/wire/frame_codec.h"
#include "services/channel/channel.h"
#include "services/check/check.h"
#include "services/logging/log.h"
#include "services/status/status.h"
#include "training/codec/crc32c.h"

namespace capstan::param_store::client {

using services::Log;
using training::ChunkRun;
using training::FlatRange;
using training::Node;

constexpr int kMaxCorruptFrames = 8;  // of a version of a shard; then the stream is opened again
constexpr int64_t kFreeBuffers = 2;   // of weights, that are kept for the next versions

struct ExchangeClient::Impl : std::enable_shared_from_this<Impl> {
  enum class State { kOpening, kOpen, kBackingOff, kWaitsForView };

  struct Peer {
    int32_t shard = 0;
    v1::StreamKind kind = v1::STREAM_KIND_DATA;
    ShardAddress address;
    ChunkRun run;
    std::vector<ChunkRun> frames;
    std::unique_ptr<grpc::GenericStub> stub;
    std::shared_ptr<ExchangeStream> stream;
    int64_t stream_id = 0;  // 0: none
    State state = State::kBackingOff;
    absl::Duration since;          // in this state
    absl::Duration backoff;        // before the next attempt
    absl::Status cause;            // why we ended the stream ourselves
    absl::Status last_error;       // of the last stream
    int64_t version = -1;          // the newest that the shard has shown
    int corrupt_frames = 0;        // that the shard found since `version` rose
    int64_t damaged_version = -1;  // weights of it came with a checksum that differs
  };
  struct Pushed {
    int64_t step = 0;
    Node node;
    std::shared_ptr<const FloatBuffer> gradient;
    std::vector<uint32_t> crc32c;  // by chunk
    int64_t ready_floats = 0;      // final, summed up and sent
  };

  Impl(const training::FlatLayout& layout, ExchangeClientOptions options, Strand& strand,
       ExchangeCallbacks callbacks)
      : layout(layout),
        options(std::move(options)),
        strand(strand),
        callbacks(std::move(callbacks)),
        pool(layout.total_floats(), kFreeBuffers),
        assembly(layout, pool) {}

  // ---- streams ----

  void OpenStream(Peer& peer) {
    const int64_t id = ++last_stream_id;
    peer.stream_id = id;
    peer.state = State::kOpening;
    peer.since = strand.Now();
    peer.cause = absl::OkStatus();
    peer.corrupt_frames = 0;
    std::weak_ptr<Impl> weak = weak_from_this();
    ExchangeStream::Handlers handlers;
    handlers.on_message = [weak, id](const grpc::ByteBuffer& message) {
      if (auto self = weak.lock()) self->OnMessage(id, message);
    };
    handlers.on_done = [weak, id](const grpc::Status& status) {
      if (auto self = weak.lock()) self->OnDone(id, services::FromGrpcStatus(status));
    };
    peer.stream = ExchangeStream::Start(*peer.stub, strand, live, std::move(handlers));
    v1::ExchangeRequest request;
    v1::Hello* hello = request.mutable_hello();
    hello->set_job_id(options.job_id);
    hello->set_spec_digest(options.spec_digest);
    hello->set_lineage(route.lineage);
    hello->set_kind(peer.kind);
    hello->set_index(options.rank);
    hello->set_have_version(assembly.complete());
    hello->set_speaks(wire::kSpeaks);
    if (peer.damaged_version >= 0) hello->set_damaged_version(peer.damaged_version);
    peer.damaged_version = -1;
    Send(peer, wire::MakeByteBuffer(request, route.lineage), 0);
    strand.PostAfter(options.hello_timeout, [weak, id] {
      auto self = weak.lock();
      Peer* late = self ? self->Find(id) : nullptr;
      if (late == nullptr || late->state != State::kOpening) return;
      self->End(*late, absl::DeadlineExceededError("no HelloReply"));
    });
  }

  Peer* Find(int64_t stream_id) {
    for (Peer& peer : peers) {
      if (peer.stream_id == stream_id) return &peer;
    }
    return nullptr;
  }

  // Ends the stream for a reason of ours; OnDone follows.
  void End(Peer& peer, absl::Status cause) {
    if (peer.cause.ok()) peer.cause = std::move(cause);
    if (peer.stream != nullptr) peer.stream->Cancel();
  }

  void OnDone(int64_t id, absl::Status status) {
    Peer* peer = Find(id);
    if (peer == nullptr) return;
    const std::shared_ptr<ExchangeStream> ended = std::move(peer->stream);
    closed_sending += ended->sending();
    peer->stream_id = 0;
    if (!peer->cause.ok()) status = peer->cause;
    if (status.ok()) status = absl::UnavailableError("the shard ended the stream");
    peer->last_error = status;
    peer->since = strand.Now();
    ++counts.retries;
    // A shard that is done with the job or the lineage ends its streams.
    Log(stopped ? services::kInfo : services::kWarning,
        stopped ? "exchange_ended" : "exchange_lost")
        .Kv("shard", peer->shard)
        .Kv("node", peer->address.node)
        .Kv("kind", v1::StreamKind_Name(peer->kind))
        .Kv("status", status)
        .Limit(absl::StrCat(peer->shard, "/", peer->kind));
    switch (status.code()) {
      case absl::StatusCode::kFailedPrecondition:
      case absl::StatusCode::kOutOfRange:
        peer->state = State::kWaitsForView;
        return;
      case absl::StatusCode::kInvalidArgument:
      case absl::StatusCode::kUnimplemented:
        peer->state = State::kWaitsForView;
        Fail(absl::Status(status.code(), absl::StrCat(Name(*peer), ": ", status.message())));
        return;
      default:
        break;
    }
    peer->state = State::kBackingOff;
    std::weak_ptr<Impl> weak = weak_from_this();
    const int64_t lineage = route.lineage;
    const size_t index = peer - peers.data();
    strand.PostAfter(peer->backoff, [weak, lineage, index] {
      auto self = weak.lock();
      if (self == nullptr || self->route.lineage != lineage) return;
      if (self->peers[index].state == State::kBackingOff) self->OpenStream(self->peers[index]);
    });
    peer->backoff = std::min(2 * peer->backoff, options.max_backoff);
  }

  void Fail(const absl::Status& status) {
    if (failed) return;
    failed = true;
    if (callbacks.on_failed) callbacks.on_failed(status);
  }

  // The peers, whose streams end by and by. Their channels must stay until the streams have ended or
  // other channels are in use: the end of the last channel joins gRPC's threads, and if a stream's
  // own end brings it about, that is on one of them.
  ABSL_MUST_USE_RESULT std::vector<Peer> CloseAll() {
    for (Peer& peer : peers) {
      if (peer.stream == nullptr) continue;
      closed_sending += peer.stream->sending();
      peer.stream->Cancel();
    }
    return std::exchange(peers, {});
  }

  void Send(Peer& peer, const grpc::ByteBuffer& message, size_t payload_bytes) {
    counts.sent_wire_bytes += static_cast<int64_t>(message.Length());
    counts.sent_payload_bytes += static_cast<int64_t>(payload_bytes);
    peer.stream->Send(message);
  }

  // ---- messages ----

  void OnMessage(int64_t id, const grpc::ByteBuffer& message) {
    Peer* peer = Find(id);
    if (peer == nullptr || !peer->cause.ok()) return;
    counts.received_wire_bytes += static_cast<int64_t>(message.Length());
    absl::StatusOr<wire::ReceivedBytes> bytes = wire::ReceivedBytes::From(message);
    if (!bytes.ok()) return End(*peer, absl::DataLossError(bytes.status().message()));
    auto decoded = wire::DecodeResponse(bytes->pieces());
    if (!decoded.ok()) return End(*peer, absl::DataLossError(decoded.status().message()));
    const v1::ExchangeResponse& response = decoded->message;
    if (response.has_hello() && response.hello().speaks() != wire::kSpeaks &&
        !response.has_check()) {
      return End(*peer, absl::UnimplementedError(
                            absl::StrCat("the shard speaks exchange ", response.hello().speaks(),
                                         ", this worker speaks exchange ", wire::kSpeaks,
                                         ": run one version of Capstan on workers and shards")));
    }
    if (!decoded->Intact(route.lineage)) {
      ++counts.corrupt_frames;
      return End(*peer, absl::DataLossError("a message whose check differs"));
    }
    if (response.has_hello()) return OnHello(*peer, response.hello());
    if (peer->state != State::kOpen) {
      return End(*peer, absl::DataLossError("the first answer is no HelloReply"));
    }
    if (response.has_ack()) return OnAck(*peer, response.ack());
    if (response.has_weights()) {
      return OnWeights(*peer, response.weights(), decoded->payload, decoded->payload_bytes);
    }
  }

  void OnHello(Peer& peer, const v1::HelloReply& reply) {
    if (reply.lineage() != route.lineage) {
      return End(peer, absl::UnavailableError(absl::StrCat(
                           "HelloReply of lineage ", reply.lineage(), ", want ", route.lineage)));
    }
    peer.state = State::kOpen;
    peer.since = strand.Now();
    peer.backoff = options.min_backoff;
    Shown(peer, reply.version());
    if (peer.kind == v1::STREAM_KIND_DATA) {
      for (const Pushed& pushed : retained) SendFrames(peer, pushed);
    }
    if (&peer == Lead()) {
      for (const auto& entry : seals)
        Send(peer, wire::MakeByteBuffer(entry.second, route.lineage), 0);
      for (const auto& entry : evaluations)
        Send(peer, wire::MakeByteBuffer(entry.second, route.lineage), 0);
    }
  }

  void Shown(Peer& peer, int64_t version) {
    if (version <= peer.version) return;
    peer.version = version;
    peer.corrupt_frames = 0;
  }

  void OnAck(Peer& peer, const v1::FrameAck& ack) {
    if (std::find(ack.outcomes().begin(), ack.outcomes().end(), v1::FRAME_OUTCOME_CORRUPT) ==
        ack.outcomes().end()) {
      return;  // covered or past: as good as stored
    }
    ++counts.corrupt_frames;
    if (++peer.corrupt_frames > kMaxCorruptFrames) {
      return End(peer, absl::DataLossError(absl::StrCat("the shard found ", peer.corrupt_frames,
                                                        " frames corrupt in one step")));
    }
    const Node node{ack.first_lane(), ack.lane_count()};
    for (Pushed& pushed : retained) {
      if (pushed.step != ack.step() || pushed.node != node) continue;
      for (const ChunkRun& frame : peer.frames) {
        if (frame.first_chunk != ack.first_chunk()) continue;
        if (training::RangeOf(layout, frame).end() > pushed.ready_floats) continue;
        ++counts.retries;
        RenewSums(peer, pushed, frame);
        SendFrame(peer, pushed, frame);
      }
    }
  }

  // A sum that was computed wrong would be found wrong for ever.
  void RenewSums(const Peer& peer, Pushed& pushed, const ChunkRun& run) {
    int wrong = 0;
    for (int32_t chunk = run.first_chunk; chunk < run.end(); ++chunk) {
      const uint32_t sum = SumOf(pushed, chunk);
      if (sum != pushed.crc32c[chunk]) ++wrong;
      pushed.crc32c[chunk] = sum;
    }
    if (wrong == 0) return;  // the bytes were damaged on their way
    Log(services::kWarning, "checksum_renewed")
        .Kv("shard", peer.shard)
        .Kv("step", pushed.step)
        .Kv("first_chunk", run.first_chunk)
        .Kv("wrong", wrong);
  }
  uint32_t SumOf(const Pushed& pushed, int32_t chunk) const {
    const FlatRange range = layout.ChunkRange(chunk);
    return training::Crc32c(pushed.gradient->data() + range.offset, sizeof(float) * range.size);
  }

  void OnWeights(Peer& peer, const v1::WeightFrame& frame, wire::Pieces payload,
                 size_t payload_bytes) {
    const ChunkRun run{frame.first_chunk(), frame.crc32c_size()};
    const int64_t end = int64_t{run.first_chunk} + run.chunk_count;
    if (peer.kind != v1::STREAM_KIND_DATA || run.chunk_count < 1 ||
        run.first_chunk < peer.run.first_chunk || end > peer.run.end() ||
        payload_bytes != sizeof(float) * training::RangeOf(layout, run).size) {
      return End(peer,
                 absl::DataLossError(absl::StrCat(
                     "weights of chunks [", run.first_chunk, ",", end, ") with ", payload_bytes,
                     " bytes, want chunks of [", peer.run.first_chunk, ",", peer.run.end(), ")")));
    }
    counts.received_payload_bytes += static_cast<int64_t>(payload_bytes);
    Shown(peer, frame.version());
    const absl::Duration now = strand.Now();
    std::optional<CompleteWeights> whole;
    wire::PayloadReader reader(payload);
    std::vector<absl::string_view> pieces;
    for (int32_t i = 0; i < run.chunk_count; ++i) {
      const int32_t chunk = run.first_chunk + i;
      const size_t size_bytes = sizeof(float) * layout.ChunkRange(chunk).size;
      CAPSTAN_CHECK(reader.Next(size_bytes, &pieces));
      const absl::Span<float> to = assembly.Destination(frame.version(), chunk, now);
      if (to.empty()) continue;  // overtaken
      if (wire::Crc32cOf(pieces) != frame.crc32c(i)) {
        ++counts.corrupt_frames;
        peer.damaged_version = frame.version();
        // The shard sends everything above have_version again on a new stream.
        return End(peer,
                   absl::DataLossError(absl::StrCat("weights of version ", frame.version(),
                                                    ", chunk ", chunk, ": the checksum differs")));
      }
      wire::CopyFloats(pieces, to);
      counts.copied_bytes += static_cast<int64_t>(size_bytes);
      auto complete = assembly.Arrived(frame.version(), chunk,
                                       {frame.stop(), frame.evaluate(), frame.loss_scale()}, now);
      if (complete.has_value()) whole = std::move(complete);
    }
    if (!whole.has_value()) return;
    counts.pull_seconds += absl::ToDoubleSeconds(whole->pull);
    ForgetBefore(whole->version);
    stopped = whole->stop;
    // Last: the callback may open another lineage.
    callbacks.on_weights(*whole);
  }

  // ---- what is kept to be sent again ----

  void ForgetBefore(int64_t version) {
    retained.erase(std::remove_if(retained.begin(), retained.end(),
                                  [version](const Pushed& p) { return p.step < version; }),
                   retained.end());
    for (auto it = seals.begin(); it != seals.end();) {
      it = it->second.seal().step() < version ? seals.erase(it) : std::next(it);
    }
    for (auto it = evaluations.begin(); it != evaluations.end();) {
      it = it->second.evaluation().version() < version ? evaluations.erase(it) : std::next(it);
    }
  }

  void SendFrames(Peer& peer, const Pushed& pushed) {
    if (pushed.step < peer.version) return;  // past there
    for (const ChunkRun& frame : peer.frames) {
      if (training::RangeOf(layout, frame).end() > pushed.ready_floats) return;
      SendFrame(peer, pushed, frame);
    }
  }

  void SendFrame(Peer& peer, const Pushed& pushed, const ChunkRun& run) {
    v1::Frame frame;
    frame.set_step(pushed.step);
    frame.set_first_lane(pushed.node.first_lane);
    frame.set_lane_count(pushed.node.lane_count);
    frame.set_first_chunk(run.first_chunk);
    for (int32_t chunk = run.first_chunk; chunk < run.end(); ++chunk) {
      frame.add_crc32c(pushed.crc32c[chunk]);
    }
    const FlatRange range = training::RangeOf(layout, run);
    const size_t size_bytes = sizeof(float) * range.size;
    const wire::OutgoingBytes payload{
        absl::string_view(reinterpret_cast<const char*>(pushed.gradient->data() + range.offset),
                          size_bytes),
        pushed.gradient};
    Send(peer,
         wire::MakeByteBuffer(wire::EncodePrefix(frame, size_bytes, route.lineage), {&payload, 1}),
         size_bytes);
  }

  Peer* Lead() {
    if (peers.empty()) return nullptr;
    return peers.back().kind == v1::STREAM_KIND_CONTROL ? &peers.back() : &peers.front();
  }
  void SendToLead(const v1::ExchangeRequest& request) {
    Peer* lead = Lead();
    if (lead == nullptr || lead->state != State::kOpen) return;  // sent when it opens
    Send(*lead, wire::MakeByteBuffer(request, route.lineage), 0);
  }

  std::string Name(const Peer& peer) const {
    return absl::StrCat("shard ", peer.shard, " (node ", peer.address.node, ", ",
                        peer.address.address, ")");
  }

  const training::FlatLayout& layout;
  const ExchangeClientOptions options;
  Strand& strand;
  const ExchangeCallbacks callbacks;
  BufferPool pool;
  WeightAssembly assembly;
  Route route;
  std::vector<Peer> peers;  // DATA by shard, then CONTROL; unchanged inside a lineage
  int64_t last_stream_id = 0;
  bool failed = false;
  bool stopped = false;  // the last version of the lineage is whole
  std::vector<Pushed> retained;
  std::map<std::pair<int32_t, int32_t>, v1::ExchangeRequest> seals;  // by node
  std::map<int64_t, v1::ExchangeRequest> evaluations;                // by block
  ExchangeStats counts;
  absl::Duration closed_sending = absl::ZeroDuration();
  LiveStreams live;
};

ExchangeClient::ExchangeClient(const training::FlatLayout& layout, ExchangeClientOptions options,
                               Strand& strand, ExchangeCallbacks callbacks)
    : impl_(std::make_shared<Impl>(layout, std::move(options), strand, std::move(callbacks))) {}

ExchangeClient::~ExchangeClient() {
  const std::vector<Impl::Peer> closed = impl_->CloseAll();
  impl_->live.WaitForNone();
}

absl::Status ExchangeClient::Open(const Route& route) {
  Impl& impl = *impl_;
  if (route.lineage == impl.route.lineage) return absl::OkStatus();
  std::vector<Impl::Peer> peers;
  int32_t next_chunk = 0;
  auto add = [&](int32_t shard, v1::StreamKind kind) -> absl::Status {
    const ShardAddress& address = route.shards[shard];
    services::ChannelOptions channel;
    absl::StatusOr<services::Endpoint> endpoint = services::ParseEndpoint(address.address);
    if (!endpoint.ok()) return endpoint.status();
    channel.peer = *std::move(endpoint);
    channel.security = impl.options.security;
    channel.peer_role = services::Role::kParamStore;
    channel.max_receive_bytes = wire::kMaxMessageBytes;
    channel.retry = false;
    channel.own_connection = true;
    channel.min_backoff = impl.options.min_backoff;
    channel.max_backoff = impl.options.max_backoff;
    absl::StatusOr<std::shared_ptr<grpc::Channel>> made = services::MakeChannel(channel);
    if (!made.ok()) return made.status();
    Impl::Peer peer;
    peer.shard = shard;
    peer.kind = kind;
    peer.address = address;
    peer.backoff = impl.options.min_backoff;
    peer.stub = std::make_unique<grpc::GenericStub>(*made);
    if (kind == v1::STREAM_KIND_DATA) {
      peer.run = {address.first_chunk, address.chunk_count};
      peer.frames = training::FramesOf(impl.layout, peer.run, impl.options.max_payload_bytes);
    }
    peers.push_back(std::move(peer));
    return absl::OkStatus();
  };
  for (size_t i = 0; i < route.shards.size(); ++i) {
    const ShardAddress& shard = route.shards[i];
    if (shard.first_chunk != next_chunk || shard.chunk_count < 1 ||
        shard.chunk_count > impl.layout.chunk_count() - next_chunk) {
      return absl::InvalidArgumentError(
          absl::StrCat("route of lineage ", route.lineage, ": shard ", i, " has chunks [",
                       shard.first_chunk, ",+", shard.chunk_count, "), want them from ", next_chunk,
                       " on, of ", impl.layout.chunk_count()));
    }
    next_chunk += shard.chunk_count;
    absl::Status status = add(static_cast<int32_t>(i), v1::STREAM_KIND_DATA);
    if (!status.ok()) return status;
  }
  if (next_chunk != impl.layout.chunk_count()) {
    return absl::InvalidArgumentError(absl::StrCat("route of lineage ", route.lineage, ": ",
                                                   next_chunk, " chunks, want ",
                                                   impl.layout.chunk_count()));
  }
  if (route.shards.size() > 1) {
    absl::Status status = add(0, v1::STREAM_KIND_CONTROL);
    if (!status.ok()) return status;
  }
  const std::vector<Impl::Peer> closed = impl.CloseAll();
  impl.retained.clear();
  impl.seals.clear();
  impl.evaluations.clear();
  impl.route = route;
  impl.stopped = false;
  impl.assembly.Reset(route.lineage);
  impl.peers = std::move(peers);
  for (Impl::Peer& peer : impl.peers) impl.OpenStream(peer);
  return absl::OkStatus();
}

void ExchangeClient::PushPrefix(int64_t step, const Node& node,
                                std::shared_ptr<const FloatBuffer> gradient, int64_t ready_floats) {
  Impl& impl = *impl_;
  CAPSTAN_CHECK(gradient != nullptr && gradient->size() == impl.layout.total_floats());
  impl.ForgetBefore(step);
  auto it = std::find_if(impl.retained.begin(), impl.retained.end(), [&](const Impl::Pushed& p) {
    return p.step == step && p.node == node && p.gradient == gradient;
  });
  if (it == impl.retained.end()) {
    impl.retained.push_back(Impl::Pushed{step, node, std::move(gradient), {}});
    it = std::prev(impl.retained.end());
    it->crc32c.resize(impl.layout.chunk_count());
  }
  Impl::Pushed& pushed = *it;
  const int64_t before = pushed.ready_floats;
  CAPSTAN_CHECK(ready_floats >= before);
  pushed.ready_floats = ready_floats;
  // Frame by frame over the shards: the first ones travel while the rest is still being summed up.
  size_t longest = 0;
  for (const Impl::Peer& peer : impl.peers) longest = std::max(longest, peer.frames.size());
  for (size_t i = 0; i < longest; ++i) {
    for (Impl::Peer& peer : impl.peers) {
      if (i >= peer.frames.size()) continue;
      const int64_t end = training::RangeOf(impl.layout, peer.frames[i]).end();
      if (end <= before || end > ready_floats) continue;
      for (int32_t chunk = peer.frames[i].first_chunk; chunk < peer.frames[i].end(); ++chunk) {
        pushed.crc32c[chunk] = impl.SumOf(pushed, chunk);
      }
      if (peer.state == Impl::State::kOpen && step >= peer.version) {
        impl.SendFrame(peer, pushed, peer.frames[i]);
      }
    }
  }
}

void ExchangeClient::SendSeal(int64_t step, const Node& node, const training::SealSums& sums) {
  v1::ExchangeRequest request;
  v1::StepSeal* seal = request.mutable_seal();
  seal->set_step(step);
  seal->set_first_lane(node.first_lane);
  seal->set_lane_count(node.lane_count);
  seal->set_samples(sums.samples);
  seal->set_loss_sum(sums.loss_sum);
  seal->set_correct(sums.correct);
  impl_->seals[{node.first_lane, node.lane_count}] = request;
  impl_->SendToLead(request);
}

void ExchangeClient::SendEvaluation(int64_t version, int64_t block,
                                    const training::SealSums& sums) {
  v1::ExchangeRequest request;
  v1::EvaluationPart* part = request.mutable_evaluation();
  part->set_version(version);
  part->set_block(static_cast<int32_t>(block));
  part->set_samples(sums.samples);
  part->set_correct(sums.correct);
  part->set_loss_sum(sums.loss_sum);
  impl_->evaluations[block] = request;
  impl_->SendToLead(request);
}

bool ExchangeClient::connected() const {
  return std::any_of(impl_->peers.begin(), impl_->peers.end(),
                     [](const Impl::Peer& peer) { return peer.state == Impl::State::kOpen; });
}

std::string ExchangeClient::Waiting() const {
  const Impl& impl = *impl_;
  std::vector<std::string> lines;
  for (const Impl::Peer& peer : impl.peers) {
    if (peer.state == Impl::State::kOpen) continue;
    const char* what = peer.state == Impl::State::kWaitsForView ? "waits for a view"
                       : peer.state == Impl::State::kOpening    ? "opening"
                                                                : "backing off";
    std::string line = absl::StrCat(
        impl.Name(peer), ": ", what, " for ",
        absl::FormatDuration(absl::Trunc(impl.strand.Now() - peer.since, absl::Milliseconds(100))));
    if (!peer.last_error.ok()) absl::StrAppend(&line, ", after ", peer.last_error.ToString());
    lines.push_back(std::move(line));
  }
  return absl::StrJoin(lines, "; ");
}

ExchangeStats ExchangeClient::stats() const {
  ExchangeStats stats = impl_->counts;
  absl::Duration sending = impl_->closed_sending;
  for (const Impl::Peer& peer : impl_->peers) {
    if (peer.stream != nullptr) sending += peer.stream->sending();
  }
  stats.push_seconds = absl::ToDoubleSeconds(sending);
  return stats;
}

int64_t ExchangeClient::weight_buffers() const { return impl_->pool.allocated(); }

}  // namespace capstan::param_store::client
