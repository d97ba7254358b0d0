#include "tests/sim/sim_shard.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "capstan/param_store/v1/param_store.pb.h"
#include "param_store/wire/frame_codec.h"
#include "services/check/check.h"
#include "training/init/init.h"
#include "training/spec/resolve.h"

namespace capstan::sim {
namespace {

namespace core = param_store::core;
namespace v1 = param_store::v1;

core::StreamKind KindOf(v1::StreamKind kind) {
  switch (kind) {
    case v1::STREAM_KIND_CONTROL:
      return core::StreamKind::kControl;
    case v1::STREAM_KIND_SHARD:
      return core::StreamKind::kShard;
    default:
      return core::StreamKind::kData;
  }
}

v1::StepDecision ToProto(const training::Decision& decision) {
  v1::StepDecision out;
  out.set_step(decision.step);
  out.set_apply(decision.apply);
  out.set_learning_rate(decision.learning_rate);
  out.set_stop(decision.stop);
  out.set_checkpoint(decision.checkpoint);
  out.set_evaluate(decision.evaluate);
  out.set_clip_scale(decision.clip_scale);
  out.set_loss_scale(decision.loss_scale);
  for (const int64_t id : decision.order_ids) out.add_order_ids(id);
  return out;
}

training::Decision FromProto(const v1::StepDecision& decision) {
  training::Decision out;
  out.step = decision.step();
  out.apply = decision.apply();
  out.learning_rate = decision.learning_rate();
  out.stop = decision.stop();
  out.checkpoint = decision.checkpoint();
  out.evaluate = decision.evaluate();
  out.clip_scale = decision.clip_scale();
  out.loss_scale = decision.loss_scale();
  out.order_ids.assign(decision.order_ids().begin(), decision.order_ids().end());
  return out;
}

template <class View>
std::vector<int32_t> RanksOf(const View& view) {
  std::vector<int32_t> ranks;
  for (const auto& worker : view.workers()) ranks.push_back(worker.rank());
  return ranks;
}

}  // namespace

void SimShard::OnStartLineage(const node::v1::StartLineage& message) {
  const auto& route = message.view().shards(message.shard());
  lead_address_ = message.view().shards(0).address();
  if (core_ == nullptr) {
    auto spec = training::spec::ParseResolved(message.resolved_spec(), message.spec_digest());
    CAPSTAN_CHECK(spec.ok());
    spec_ = *std::move(spec);
    core::ShardPlan plan{.job_id = message.job_id(),
                         .spec_digest = message.spec_digest(),
                         .shard = message.shard(),
                         .num_shards = spec_.num_shards(),
                         .total_steps = spec_.total_steps(),
                         .evaluate_every_steps = spec_.evaluate_every_steps(),
                         .layout = *training::spec::MakeLayout(spec_),
                         .samples = *training::spec::MakeSamplePlan(spec_),
                         .evaluation = *training::spec::MakeEvalPlan(spec_),
                         .schedule = *training::spec::MakeSchedule(spec_)};
    core_ = std::make_unique<core::ShardCore>(std::move(plan));
    optimizer_ = *training::spec::MakeOptimizer(spec_);
    storage_ = std::make_unique<param_store::ShardStorage>(core_->plan().layout,
                                                           core_->plan().samples, *optimizer_);
  }
  core::StartLineage event;
  event.lineage = message.view().lineage();
  event.generation = message.view().generation();
  event.run = {route.first_chunk(), route.chunk_count()};
  event.workers = RanksOf(message.view());
  event.lane_owners.assign(message.view().lane_owners().begin(),
                           message.view().lane_owners().end());
  event.base_manifest = message.base_manifest();
  Do(event);
}

void SimShard::OnViewChange(const node::v1::ViewChange& message) {
  if (core_ == nullptr) return;
  core::ViewChange event;
  event.lineage = message.view().lineage();
  event.generation = message.view().generation();
  event.workers = RanksOf(message.view());
  event.lane_owners.assign(message.view().lane_owners().begin(),
                           message.view().lane_owners().end());
  Do(event);
}

void SimShard::OnFilesTaken(const node::v1::FilesTaken& message) {
  if (core_ != nullptr) Do(core::FilesTaken{message.lineage(), message.step()});
}

void SimShard::OnEndJob() {
  if (core_ == nullptr) return;
  Do(core::EndJob{});
  storage_.reset();
  core_.reset();
}

int64_t SimShard::OpenStream(std::function<void(const std::string&, bool)> reply,
                             std::function<void()> close) {
  streams_[next_stream_] = {std::move(reply), std::move(close)};
  return next_stream_++;
}

void SimShard::CloseStream(int64_t stream) {
  if (streams_.erase(stream) > 0 && core_ != nullptr) Do(core::StreamClosed{stream});
}

void SimShard::OnBytes(int64_t id, const std::string& bytes) {
  const auto stream = streams_.find(id);
  if (stream == streams_.end()) return;
  if (core_ == nullptr) {  // no such job here: the task tries again
    auto close = std::move(stream->second.close);
    streams_.erase(stream);
    return close();
  }
  // Cut somewhere: pieces may begin and end anywhere.
  const size_t cut = static_cast<size_t>(random_.Below(static_cast<int64_t>(bytes.size()) + 1));
  const std::vector<absl::string_view> pieces = {absl::string_view(bytes).substr(0, cut),
                                                 absl::string_view(bytes).substr(cut)};
  auto decoded = param_store::wire::DecodeRequest(pieces);
  CAPSTAN_CHECK(decoded.ok());
  const v1::ExchangeRequest& message = decoded->message;
  switch (message.message_case()) {
    case v1::ExchangeRequest::kHello:
      if (stream->second.greeted) return;
      stream->second.greeted = true;
      return Do(core::StreamOpened{id, KindOf(message.hello().kind()),
                                   message.hello().spec_digest(), message.hello().lineage(),
                                   message.hello().index(), message.hello().have_version()});
    case v1::ExchangeRequest::kSeal: {
      const auto& seal = message.seal();
      return Do(core::SealArrived{id,
                                  seal.step(),
                                  {seal.first_lane(), seal.lane_count()},
                                  {seal.samples(), seal.loss_sum(), seal.correct()}});
    }
    case v1::ExchangeRequest::kPart:
      return Do(core::PartArrived{id, message.part().step(), message.part().shard(),
                                  message.part().finite()});
    case v1::ExchangeRequest::kEvaluation: {
      const auto& part = message.evaluation();
      return Do(core::EvaluationArrived{
          id, part.version(), part.block(), {part.samples(), part.loss_sum(), part.correct()}});
    }
    case v1::ExchangeRequest::kFrame: {
      const v1::Frame& frame = message.frame();
      core::FrameArrived event{id,
                               frame.step(),
                               {frame.first_lane(), frame.lane_count()},
                               frame.first_chunk(),
                               frame.crc32c_size(),
                               decoded->payload_bytes,
                               {},
                               next_payload_++};
      if (core_->CheckShape(event.first_chunk, event.chunk_count, event.payload_bytes).ok()) {
        const std::vector<uint32_t> crcs(frame.crc32c().begin(), frame.crc32c().end());
        event.intact = storage_->Verify(event.first_chunk, crcs, decoded->payload);
      }
      std::string& payload = payloads_[event.payload];
      for (const absl::string_view piece : decoded->payload)
        payload.append(piece.data(), piece.size());
      Do(event);
      payloads_.clear();
      return;
    }
    case v1::ExchangeRequest::MESSAGE_NOT_SET:
      CAPSTAN_CHECK(false);
  }
}

std::optional<node::v1::ShardState> SimShard::State() const {
  if (core_ == nullptr || core_->lineage() == 0) return std::nullopt;
  return core_->State(queue_.now());
}

void SimShard::Do(const core::Event& event) {
  const core::Effects effects = core_->Step(event, queue_.now());
  for (const core::Effect& effect : effects) CarryOut(effect);
  if (core_ == nullptr) return;
  const absl::Duration due = core_->NextDeadline();
  if (due < tick_at_) {
    tick_at_ = due;
    queue_.At(due, [this, due] {
      if (tick_at_ == due) Tick();
    });
  }
}

void SimShard::Tick() {
  tick_at_ = absl::InfiniteDuration();
  if (core_ != nullptr) Do(core::Tick{});
}

void SimShard::OnLeadBytes(int64_t lineage, const std::string& bytes) {
  if (core_ == nullptr) return;
  v1::ExchangeResponse message;
  CAPSTAN_CHECK(message.ParseFromString(bytes));
  if (message.has_hello()) Do(core::LeadOpened{lineage});
  if (message.has_decision()) Do(core::DecisionArrived{lineage, FromProto(message.decision())});
}

void SimShard::CarryOut(const core::Effect& effect) {
  const auto reply = [this](int64_t stream, const v1::ExchangeResponse& message) {
    const auto found = streams_.find(stream);
    if (found != streams_.end())
      found->second.reply(message.SerializeAsString(), message.has_hello());
  };
  if (const auto* e = std::get_if<core::LoadBase>(&effect)) {
    CAPSTAN_CHECK(e->base_manifest.empty());
    queue_.After(random_.Between(absl::Milliseconds(1), absl::Milliseconds(20)), [this, load = *e] {
      if (core_ == nullptr) return;
      auto weights = param_store::ShardStorage::MakeBuffer(core_->plan().layout, load.run);
      const training::FlatRange range = training::RangeOf(core_->plan().layout, load.run);
      training::InitRange(core_->plan().layout, training::spec::MakeInitOptions(spec_),
                          spec_.spec().training().seed(), range.offset, weights->span());
      storage_->Begin(load.run, 0, weights);
      hooks_.published(core_->plan().shard, 0, weights->span(), range.offset);
      Do(core::BaseLoaded{load.lineage, 0, "", ""});
    });
  } else if (const auto* e = std::get_if<core::SendHelloReply>(&effect)) {
    v1::ExchangeResponse message;
    message.mutable_hello()->set_lineage(e->lineage);
    message.mutable_hello()->set_version(e->version);
    reply(e->stream, message);
  } else if (const auto* e = std::get_if<core::CloseStream>(&effect)) {
    const auto found = streams_.find(e->stream);
    if (found == streams_.end()) return;
    auto close = std::move(found->second.close);
    streams_.erase(found);
    close();
  } else if (const auto* e = std::get_if<core::SendAck>(&effect)) {
    v1::ExchangeResponse message;
    message.mutable_ack()->set_step(e->step);
    reply(e->stream, message);
  } else if (const auto* e = std::get_if<core::FoldFrame>(&effect)) {
    const std::vector<absl::string_view> pieces = {payloads_.at(e->payload)};
    storage_->Fold(*e, pieces);
  } else if (const auto* e = std::get_if<core::CheckRoots>(&effect)) {
    queue_.After(absl::Microseconds(random_.Below(500)), [this, check = *e] {
      if (core_ == nullptr) return;
      Do(core::RootsChecked{check.lineage, check.step, storage_->RootsFinite()});
    });
  } else if (const auto* e = std::get_if<core::ApplyStep>(&effect)) {
    storage_->Apply(e->decision);
    hooks_.published(core_->plan().shard, e->decision.step + 1, storage_->current().floats->span(),
                     training::RangeOf(core_->plan().layout, storage_->run()).offset);
  } else if (const auto* e = std::get_if<core::SendWeights>(&effect)) {
    const auto& weights = storage_->current();
    CAPSTAN_CHECK(weights.version == e->version);
    for (const training::ChunkRun& run :
         training::FramesOf(core_->plan().layout, storage_->run())) {
      v1::ExchangeResponse message;
      v1::WeightFrame& frame = *message.mutable_weights();
      frame.set_version(e->version);
      frame.set_stop(e->stop);
      frame.set_evaluate(e->evaluate);
      frame.set_first_chunk(run.first_chunk);
      for (int32_t chunk = run.first_chunk; chunk < run.end(); ++chunk) {
        const int32_t index = chunk - storage_->run().first_chunk;
        frame.add_crc32c((*weights.crcs)[index]);
        const training::FlatRange range = storage_->LocalRange(index);
        frame.mutable_payload()->append(
            reinterpret_cast<const char*>(weights.floats->data() + range.offset), 4 * range.size);
      }
      reply(e->stream, message);
    }
  } else if (const auto* e = std::get_if<core::RetireVersion>(&effect)) {
    storage_->Retire(e->version);
  } else if (const auto* e = std::get_if<core::ConnectLead>(&effect)) {
    if (lead_ != nullptr) lead_->Break();
    const int64_t lineage = e->lineage;
    lead_ = hooks_.connect(
        lead_address_, [this, lineage](const std::string& bytes) { OnLeadBytes(lineage, bytes); },
        [this, lineage] {
          if (core_ != nullptr) Do(core::LeadClosed{lineage, absl::UnavailableError("broken")});
        });
    v1::ExchangeRequest message;
    v1::Hello& hello = *message.mutable_hello();
    hello.set_job_id(core_->plan().job_id);
    hello.set_spec_digest(core_->plan().spec_digest);
    hello.set_lineage(lineage);
    hello.set_kind(v1::STREAM_KIND_SHARD);
    hello.set_index(core_->plan().shard);
    hello.set_have_version(e->have_version);
    lead_->Send(message.SerializeAsString(), /*in_order=*/true);
  } else if (std::holds_alternative<core::DropLead>(effect)) {
    if (lead_ != nullptr) lead_->Break();
    lead_.reset();
  } else if (const auto* e = std::get_if<core::SendPart>(&effect)) {
    v1::ExchangeRequest message;
    message.mutable_part()->set_step(e->step);
    message.mutable_part()->set_shard(core_->plan().shard);
    message.mutable_part()->set_finite(e->finite);
    if (lead_ != nullptr) lead_->Send(message.SerializeAsString());
  } else if (const auto* e = std::get_if<core::SendDecision>(&effect)) {
    v1::ExchangeResponse message;
    *message.mutable_decision() = ToProto(e->decision);
    reply(e->stream, message);
  } else if (const auto* e = std::get_if<core::WriteFiles>(&effect)) {
    queue_.After(
        random_.Between(absl::Milliseconds(1), absl::Milliseconds(50)), [this, write = *e] {
          if (core_ == nullptr) return;
          core::FilesWritten event{write.lineage, write.version, {}, absl::OkStatus()};
          if (random_.Chance(0.2)) {
            event.error = absl::ResourceExhaustedError("disk full");  // tried again
          } else {
            event.files.emplace_back();
            event.files[0].set_name(absl::StrCat("shard-", core_->plan().shard, ".safetensors"));
            event.files[0].set_size_bytes(100);
            event.files[0].set_sha256(std::string(32, 'x'));
          }
          Do(event);
        });
  } else if (std::holds_alternative<core::StateChanged>(effect)) {
    hooks_.changed();
  }
}

}  // namespace capstan::sim
