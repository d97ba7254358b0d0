#include "param_store/shard_job.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "exchange/shard/shard_messages.h"
#include "exchange/wire/byte_buffer.h"
#include "param_store/weight_messages.h"
#include "services/check/check.h"
#include "services/logging/log.h"
#include "training/chunks/shard_memory.h"
#include "training/optim/trust_rule.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::param_store {
namespace {

namespace core = exchange::shard;

using services::Log;

constexpr absl::Duration kRefresh = absl::Milliseconds(500);  // of state() and the gauges
constexpr absl::Duration kAbortAfter = absl::Seconds(5);      // of a stream that was closed

}  // namespace

absl::StatusOr<ShardJobOptions> ReadJob(absl::string_view resolved_spec,
                                        absl::string_view spec_digest, int32_t shard) {
  namespace spec = training::spec;
  const auto resolved = spec::ParseResolved(resolved_spec, spec_digest);
  if (!resolved.ok()) return resolved.status();
  if (!spec::UsesShards(*resolved)) {
    return absl::InvalidArgumentError(absl::StrCat("shard: got ", shard, ", the job has none"));
  }
  if (shard < 0) return absl::InvalidArgumentError(absl::StrCat("shard: got ", shard));
  auto layout = spec::MakeLayout(*resolved);
  if (!layout.ok()) return layout.status();
  auto samples = spec::MakeSamplePlan(*resolved);
  if (!samples.ok()) return samples.status();
  auto evaluation = spec::MakeEvalPlan(*resolved);
  if (!evaluation.ok()) return evaluation.status();
  auto schedule = spec::MakeSchedule(*resolved);
  if (!schedule.ok()) return schedule.status();
  auto optimizer = spec::MakeOptimizer(*resolved);
  if (!optimizer.ok()) return optimizer.status();

  auto pieces = training::PiecesFor(**optimizer, *layout);
  const int64_t evaluate_every = resolved->evaluate_every_steps();
  return ShardJobOptions{.plan = {.job_id = resolved->job_id(),
                                  .spec_digest = std::string(spec_digest),
                                  .shard = shard,
                                  .total_steps = resolved->total_steps(),
                                  .evaluate_every_steps = evaluate_every,
                                  .layout = *std::move(layout),
                                  .samples = *std::move(samples),
                                  .evaluation = *std::move(evaluation),
                                  .schedule = *std::move(schedule),
                                  .dynamic_loss_scale = spec::DynamicLossScale(*resolved),
                                  .clip_norm = spec::ClipNorm(*resolved),
                                  .pieces = std::move(pieces),
                                  .asynchronous = spec::IsAsynchronous(resolved->spec()),
                                  .has_accuracy = !spec::HasNumericTargets(resolved->spec()),
                                  .max_staleness = spec::MaxStaleness(*resolved),
                                  .gradient_format = spec::GradientFormatOf(*resolved),
                                  .replicas = spec::WorkersUpdate(resolved->spec()),
                                  .checkpoint_every_steps = resolved->checkpoint_every_steps(),
                                  .checkpoint_every = spec::CheckpointEvery(*resolved)},
                         .optimizer = *std::move(optimizer),
                         .base = {.init = spec::MakeInitOptions(*resolved),
                                  .seed = resolved->spec().training().seed(),
                                  .initial_weights = resolved->spec().model().initial_weights()},
                         .storage_path = resolved->storage_path(),
                         .training_digest = resolved->training_digest()};
}

ShardJob::ShardJob(ShardJobOptions options)
    : options_(std::move(options)),
      job_files_({.job_id = options_.plan.job_id,
                  .storage_path = options_.storage_path,
                  .key = options_.files_key,
                  .channel = options_.files_channel,
                  .may_touch_folder = options_.may_touch_folder,
                  .may_touch_weights = options_.may_touch_weights}),
      log_(files_, options_.plan.job_id, options_.storage_path, &job_files_),
      core_(options_.plan),
      storage_(options_.plan.layout, *options_.optimizer,
               {.format = options_.plan.gradient_format, .replicas = options_.plan.replicas}),
      metrics_(options_.metrics, options_.plan),
      lead_link_(strand_, options_.security),
      state_(core_.State(absl::ZeroDuration())) {}

ShardJob::~ShardJob() { CAPSTAN_CHECK(!strand_thread_.joinable() && !file_thread_.joinable()); }

void ShardJob::Start() {
  strand_thread_ = std::thread([this] { strand_.Run(); });
  file_thread_ = std::thread([this] { files_.Run(); });
}

void ShardJob::Stop(const absl::Status& status) {
  job_files_.Cancel();  // a network that is away holds up no end
  strand_.Post([this, status] {
    if (status.ok()) Do(core::EndJob{});
    for (const auto& entry : streams_) entry.second->Close(status);
    streams_.clear();
    lead_link_.Drop();
    // Behind everything that is still to be written.
    files_.Post([this] {
      log_.Close();
      files_.Stop();
    });
    strand_.Stop();
  });
}

void ShardJob::Join() {
  strand_thread_.join();
  file_thread_.join();
  lead_link_.WaitUntilGone();
}

void ShardJob::StartLineage(core::StartLineage event, std::string lead_address) {
  strand_.Post([self = shared_from_this(), event = std::move(event),
                lead_address = std::move(lead_address)] {
    if (event.lineage > self->core_.lineage()) self->lead_address_ = lead_address;
    self->Do(event);
  });
}

void ShardJob::Post(core::Event event) {
  strand_.Post([self = shared_from_this(), event = std::move(event)] { self->Do(event); });
}

void ShardJob::Learn(const common::v1::View& view,
                     const exchange::StreamGuard::Certificates& certificates) {
  strand_.Post(
      [self = shared_from_this(), view, certificates] { self->guard_.Learn(view, certificates); });
}

node::v1::ShardState ShardJob::state() const {
  MutexLock lock(mu_);
  return state_;
}

// ---- Streams ----

void ShardJob::OnHello(std::shared_ptr<exchange::ServerStream> stream, v1::Hello hello) {
  strand_.Post([self = shared_from_this(), stream = std::move(stream), hello = std::move(hello)] {
    if (const absl::Status may = self->guard_.Check(stream->caller(), hello); !may.ok()) {
      Log(services::kWarning, "stream_refused")
          .Kv("job", self->options_.plan.job_id)
          .Kv("status", may)
          .Limit(may.message());
      stream->Close(may);
      return;
    }
    self->streams_[stream->id()] = stream;
    if (hello.has_damaged_version()) self->RenewSums(hello);
    self->Do(core::StreamOpened{.stream = stream->id(),
                                .kind = hello.kind(),
                                .spec_digest = hello.spec_digest(),
                                .lineage = hello.lineage(),
                                .index = hello.index(),
                                .have_version = hello.have_version()});
  });
}

void ShardJob::OnMessage(std::shared_ptr<exchange::ServerStream> stream,
                         std::shared_ptr<grpc::ByteBuffer> message) {
  metrics_.MessageCame();
  strand_.Post(
      [self = shared_from_this(), stream = std::move(stream), message = std::move(message)] {
        const auto bytes = exchange::wire::ReceivedBytes::From(*message);
        self->Handle(stream, bytes.ok() ? bytes->pieces() : exchange::wire::Pieces());
        stream->Handled();
        self->metrics_.MessageHandled();
      });
}

std::optional<int64_t> ShardJob::RingBytes(v1::StreamKind kind) {
  namespace shared = exchange::shared;
  switch (kind) {
    case v1::STREAM_KIND_DATA:
      return shared::RingBytesFor(4 * options_.plan.layout.total_floats() *
                                  (storage_.replicas() ? 1 + storage_.states() : 1));
    case v1::STREAM_KIND_CONTROL:
      return shared::RingBytesFor(0);  // seals
    default:
      return shared::kRingBytesForAny;  // with the norms of tens of thousands of tensors
  }
}

void ShardJob::OnPipe(std::shared_ptr<exchange::ServerStream> stream,
                      std::shared_ptr<exchange::shared::Pipe> pipe) {
  strand_.Post([self = shared_from_this(), stream = std::move(stream), pipe = std::move(pipe)] {
    self->UsePipe(stream, pipe);
  });
}

void ShardJob::UsePipe(const std::shared_ptr<exchange::ServerStream>& stream,
                       const std::shared_ptr<exchange::shared::Pipe>& pipe) {
  const core::StreamId id = stream->id();
  if (!streams_.contains(id) || !strand_.Add(pipe)) return;
  const bool used = stream->UsePipe(
      pipe,
      [weak = weak_from_this(), of = std::weak_ptr(stream)](exchange::wire::Pieces message) {
        const auto self = weak.lock();
        const auto sender = of.lock();
        if (self == nullptr || sender == nullptr) return;
        self->metrics_.MessageCame();
        self->Handle(sender, message);
        self->metrics_.MessageHandled();
      },
      [weak = weak_from_this(), id](const absl::Status& status) {
        const auto self = weak.lock();
        if (self == nullptr || !self->streams_.contains(id)) return;
        self->Do(core::StreamClosed{id});
        self->Run(core::CloseStream{id, status});
      });
  if (!used) return;
  Log(services::kInfo, "stream_shares_memory")
      .Kv("job", options_.plan.job_id)
      .Kv("shard", options_.plan.shard)
      .Kv("stream", id);
}

// A sum that was computed wrong, or has changed in memory, would be found wrong for ever.
void ShardJob::RenewSums(const v1::Hello& hello) {
  if (hello.lineage() != core_.lineage() || hello.spec_digest() != options_.plan.spec_digest) {
    return;  // refused by the core
  }
  const int64_t wrong = storage_.RenewSums(hello.damaged_version());
  Log(wrong > 0 ? services::kError : services::kInfo, "checksums_renewed")
      .Kv("job", options_.plan.job_id)
      .Kv("shard", options_.plan.shard)
      .Kv("rank", hello.index())
      .Kv("version", hello.damaged_version())
      .Kv("wrong", wrong);
}

void ShardJob::OnWeightsTaken(core::StreamId stream, int64_t version) {
  strand_.Post([self = shared_from_this(), stream, version] {
    self->Do(core::WeightsTaken{stream, version});
  });
}

void ShardJob::OnEnd(core::StreamId stream) {
  strand_.Post([self = shared_from_this(), stream] {
    self->streams_.erase(stream);
    self->Do(core::StreamClosed{stream});
  });
}

void ShardJob::Handle(const std::shared_ptr<exchange::ServerStream>& stream,
                      exchange::wire::Pieces message) {
  const core::StreamId id = stream->id();
  if (!streams_.contains(id)) return;  // closed, and what it still had to say is dropped
  absl::Status bad;
  auto decoded = exchange::wire::DecodeRequest(message);
  if (!decoded.ok()) {
    bad = absl::DataLossError(decoded.status().message());
  } else if (!decoded->Intact(core_.lineage())) {  // all streams are of the lineage at hand
    bad = absl::DataLossError("a message whose check differs");
  } else {
    const v1::ExchangeRequest& request = decoded->message;
    switch (request.message_case()) {
      case v1::ExchangeRequest::kFrame:
        return HandleFrame(stream, request.frame(), decoded->payload, decoded->payload_bytes);
      case v1::ExchangeRequest::kSeal: {
        const v1::StepSeal& seal = request.seal();
        return Do(core::SealArrived{id,
                                    seal.step(),
                                    {seal.first_lane(), seal.lane_count()},
                                    {seal.samples(), seal.loss_sum(), seal.correct()},
                                    seal.staleness()});
      }
      case v1::ExchangeRequest::kSkip:
        return Do(core::SkipArrived{id, request.skip().step(), request.skip().lane()});
      case v1::ExchangeRequest::kWanted:
        return Do(core::WeightsAskedFor{id, request.wanted().step(), request.wanted().lane()});
      case v1::ExchangeRequest::kPart:
        return Do(core::ReadPart(id, request.part()));
      case v1::ExchangeRequest::kShown:
        return Do(core::ShownArrived{id, request.shown().version()});
      case v1::ExchangeRequest::kEvaluation: {
        const v1::EvaluationPart& part = request.evaluation();
        return Do(core::EvaluationArrived{
            id, part.version(), part.block(), {part.samples(), part.loss_sum(), part.correct()}});
      }
      default:
        bad = absl::InvalidArgumentError("a second Hello");
    }
  }
  Do(core::StreamClosed{id});
  Run(core::CloseStream{id, bad});
}

void ShardJob::HandleFrame(const std::shared_ptr<exchange::ServerStream>& stream,
                           const v1::Frame& frame, exchange::wire::Pieces payload,
                           size_t payload_bytes) {
  const absl::Duration start = strand_.Now();
  core::FrameArrived event;
  event.stream = stream->id();
  event.step = frame.step();
  event.block = {frame.first_lane(), frame.lane_count()};
  event.first_chunk = frame.first_chunk();
  event.chunk_count = frame.crc32c_size();
  event.payload_bytes = payload_bytes;
  if (core_.CheckShape(event.first_chunk, event.chunk_count, payload_bytes).ok()) {
    event.intact = storage_.Verify(
        event.first_chunk, absl::MakeConstSpan(frame.crc32c().data(), event.chunk_count), payload);
  }
  payload_ = payload;
  Do(std::move(event));
  payload_ = {};
  const absl::Duration took = strand_.Now() - start;
  metrics_.Pushed(took);
  load_.Pushed(took, payload_bytes);
}

// ---- The core ----

void ShardJob::Do(core::Event event) {
  events_.push_back(std::move(event));
  if (in_step_) return;  // an answer of an effect: its turn comes below
  in_step_ = true;
  while (!events_.empty()) {
    const core::Event next = std::move(events_.front());
    events_.pop_front();
    for (const core::Effect& effect : core_.Step(next, strand_.Now())) {
      if (!std::holds_alternative<core::SendWeights>(effect)) Deliver();
      std::visit([this](const auto& e) { Run(e); }, effect);
    }
    Deliver();
    storage_.ForgetSums();
  }
  in_step_ = false;
  Arm();
}

void ShardJob::Arm() {
  const absl::Duration now = strand_.Now();
  if (now - published_at_ >= kRefresh) Publish();
  const absl::Duration at = std::min(core_.NextDeadline(), published_at_ + kRefresh);
  if (at >= armed_at_) return;
  armed_at_ = at;
  strand_.PostAfter(std::max(at - now, absl::ZeroDuration()), [weak = weak_from_this(), at] {
    const auto self = weak.lock();
    if (self == nullptr || self->armed_at_ != at) return;
    self->armed_at_ = absl::InfiniteDuration();
    self->Do(core::Tick{});
  });
}

void ShardJob::Publish() {
  published_at_ = strand_.Now();
  const auto pulls = std::count_if(streams_.begin(), streams_.end(), [](const auto& entry) {
    return entry.second->writing().version >= 0;
  });
  CloseStuckReaders();
  metrics_.Update(core_, ResidentBytes(), static_cast<int>(pulls));
  node::v1::ShardState state = core_.State(published_at_);
  *state.mutable_load() = load_.Report(published_at_, core_.lineage(), core_.version());
  state.set_files_way(job_files_.way());
  state.mutable_load()->set_resident_bytes(ResidentBytes().total());
  MutexLock lock(mu_);
  state_ = std::move(state);
}

void ShardJob::Run(const core::StateChanged&) {
  Publish();
  if (options_.on_state) options_.on_state();
}

void ShardJob::Run(const core::SendHelloReply& effect) {
  v1::ExchangeResponse response;
  response.mutable_hello()->set_lineage(effect.lineage);
  response.mutable_hello()->set_version(effect.version);
  response.mutable_hello()->set_speaks(exchange::wire::kSpeaks);
  const auto it = streams_.find(effect.stream);
  if (it != streams_.end())
    it->second->Send(exchange::wire::MakeByteBuffer(response, core_.lineage()));
}

void ShardJob::Run(const core::CloseStream& effect) {
  const auto it = streams_.find(effect.stream);
  if (it == streams_.end()) return;
  Log(services::kInfo, "stream_closed")
      .Kv("job", options_.plan.job_id)
      .Kv("shard", options_.plan.shard)
      .Kv("reason", effect.status.message());
  it->second->Close(effect.status);
  closing_.erase(std::remove_if(closing_.begin(), closing_.end(),
                                [](const auto& stream) { return stream.expired(); }),
                 closing_.end());
  closing_.push_back(it->second);
  // A peer that does not read would never see the status.
  strand_.PostAfter(kAbortAfter, [stream = it->second] { stream->Abort(); });
  streams_.erase(it);
}

void ShardJob::Run(const core::SendAck& effect) {
  v1::ExchangeResponse response;
  v1::FrameAck* const ack = response.mutable_ack();
  ack->set_step(effect.step);
  ack->set_first_lane(effect.block.first_lane);
  ack->set_lane_count(effect.block.lane_count);
  ack->set_first_chunk(effect.first_chunk);
  for (const v1::FrameOutcome outcome : effect.outcomes) ack->add_outcomes(outcome);
  const auto it = streams_.find(effect.stream);
  if (it != streams_.end())
    it->second->Send(exchange::wire::MakeByteBuffer(response, core_.lineage()));
}

void ShardJob::Run(const core::SendDecision& effect) {
  v1::ExchangeResponse response;
  *response.mutable_decision() = core::DecisionMessage(effect.decision, effect.held);
  const auto it = streams_.find(effect.stream);
  if (it != streams_.end())
    it->second->Send(exchange::wire::MakeByteBuffer(response, core_.lineage()));
}

// ---- Arithmetic ----

void ShardJob::Run(const core::FoldFrame& effect) { storage_.Fold(effect, payload_); }

void ShardJob::Run(const core::ApplyFrame& effect) {
  const absl::Duration start = strand_.Now();
  storage_.ApplyFrame(effect, payload_);
  metrics_.Applied(strand_.Now() - start);
}

void ShardJob::Run(const core::CheckRoots& effect) {
  events_.push_back(core::RootsChecked{effect.lineage, effect.step, storage_.CheckRoots(effect)});
}

void ShardJob::Run(const core::ApplyStep& effect) {
  // An asynchronous job makes no buffer here, and each stream has at most one.
  const bool makes = !options_.plan.asynchronous;
  if (makes && storage_.weight_buffers_in_use() >= training::kMostWeightBuffers) MakeRoom();
  storage_.BeginVersion(effect.decision, effect.held_version);
  making_ = true;
  if (makes && storage_.weight_buffers_in_use() > training::kUsualWeightBuffers + snapshots_)
    CloseLaggards();
}

void ShardJob::Run(const core::DropWeights& effect) {
  const auto it = streams_.find(effect.stream);
  if (it != streams_.end()) it->second->DropWeights();
}

void ShardJob::Run(const core::RetireVersion& effect) { storage_.Retire(effect.version); }

void ShardJob::Run(const core::SendWeights& effect) { sends_.push_back(effect); }

void ShardJob::Deliver() {
  if (!making_ && sends_.empty()) return;
  std::vector<core::SendWeights> sends = std::exchange(sends_, {});
  std::erase_if(sends, [this](const auto& send) { return streams_.count(send.stream) == 0; });
  std::vector<const VersionWeights*> weights;
  for (const core::SendWeights& send : sends) {
    streams_.at(send.stream)->DropWeights();
    weights.push_back(storage_.Find(send.version));
    CAPSTAN_CHECK(weights.back() != nullptr);
  }
  std::vector<training::ChunkRun> frames = training::FramesOf(options_.plan.layout, storage_.run());
  std::reverse(frames.begin(), frames.end());  // the first layers lie last
  absl::Duration made, sent;
  for (const training::ChunkRun& frame : frames) {
    const bool last = &frame == &frames.back();
    const absl::Duration start = strand_.Now();
    storage_.MakeChunks(frame);
    const absl::Duration here = strand_.Now();
    made += here - start;
    // Before the last frame leaves: whoever has the version finds it counted.
    if (last && std::exchange(making_, false)) metrics_.Applied(made);
    for (size_t i = 0; i < sends.size(); ++i) SendFrame(sends[i], *weights[i], frame, last);
    sent += strand_.Now() - here;
  }
  for (size_t i = 0; i < sends.size(); ++i) {
    const absl::Duration each = sent / static_cast<int64_t>(sends.size());
    metrics_.Pulled(each);
    load_.Pulled(each);
  }
}

void ShardJob::SendFrame(const core::SendWeights& effect, const VersionWeights& weights,
                         const training::ChunkRun& frame, bool last) {
  const std::vector<WeightMessage> messages =
      MakeWeightMessages(effect, storage_, weights, frame, core_.lineage());
  for (const WeightMessage& message : messages) {
    streams_.at(effect.stream)
        ->Send(exchange::wire::MakeByteBuffer(message.prefix, message.payload), effect.version,
               last && &message == &messages.back());
    for (const exchange::wire::OutgoingBytes& part : message.payload) {
      load_.Sent(static_cast<int64_t>(part.bytes.size()));
    }
  }
}

// ---- The lead ----

void ShardJob::Run(const core::ConnectLead& effect) {
  v1::Hello hello;
  hello.set_job_id(options_.plan.job_id);
  hello.set_spec_digest(options_.plan.spec_digest);
  hello.set_lineage(effect.lineage);
  hello.set_kind(v1::STREAM_KIND_SHARD);
  hello.set_index(options_.plan.shard);
  hello.set_have_version(effect.have_version);
  const int64_t lineage = effect.lineage;
  lead_link_.Open(lead_address_, hello,
                  {.on_open = [this, lineage] { Do(core::LeadOpened{lineage}); },
                   .on_decision =
                       [this, lineage](const v1::StepDecision& decision) {
                         Do(core::ReadDecision(lineage, decision));
                       },
                   .on_closed =
                       [this, lineage](const absl::Status& status) {
                         Log(services::kWarning, "lead_lost")
                             .Kv("job", options_.plan.job_id)
                             .Kv("shard", options_.plan.shard)
                             .Kv("status", status);
                         Do(core::LeadClosed{lineage, status});
                       }});
}

void ShardJob::Run(const core::DropLead&) { lead_link_.Drop(); }

void ShardJob::Run(const core::SendPart& effect) {
  lead_link_.Send(core::PartMessage(effect, options_.plan.shard));
}

void ShardJob::Run(const core::SendShown& effect) {
  v1::VersionShown shown;
  shown.set_version(effect.version);
  lead_link_.Send(shown);
}

}  // namespace capstan::param_store
