#include "tests/sim/sim_task.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "capstan/param_store/v1/param_store.pb.h"
#include "param_store/wire/frame_codec.h"
#include "services/check/check.h"
#include "training/chunks/placement.h"
#include "training/codec/crc32c.h"
#include "training/spec/resolve.h"

namespace capstan::sim {
namespace {

namespace core = gpu_worker::core;
namespace v1 = param_store::v1;

node::v1::TaskPhase PhaseOf(core::Phase phase) {
  switch (phase) {
    case core::Phase::kStarting:
      return node::v1::TASK_PHASE_STARTING;
    case core::Phase::kRunning:
      return node::v1::TASK_PHASE_RUNNING;
    case core::Phase::kFinished:
      return node::v1::TASK_PHASE_FINISHED;
    case core::Phase::kFailed:
      return node::v1::TASK_PHASE_FAILED;
  }
  return node::v1::TASK_PHASE_UNSPECIFIED;
}

}  // namespace

SimTask::SimTask(EventQueue& queue, Random& random, Process& process, Toy toy,
                 const node::v1::StartTask& start, Hooks hooks)
    : queue_(queue), random_(random), process_(process), toy_(toy), hooks_(std::move(hooks)) {
  auto spec = training::spec::ParseResolved(start.resolved_spec(), start.spec_digest());
  CAPSTAN_CHECK(spec.ok());
  spec_ = *std::move(spec);
  digest_ = start.spec_digest();
  layout_ = *training::spec::MakeLayout(spec_);
  samples_ = *training::spec::MakeSamplePlan(spec_);
  evaluation_ = *training::spec::MakeEvalPlan(spec_);
  pool_ = std::make_unique<gpu_worker::BufferPool>(layout_->total_floats());
  state_.set_job_id(spec_.job_id());
  state_.set_rank(start.rank());
  state_.set_phase(node::v1::TASK_PHASE_STARTING);
  core_ = std::make_unique<core::WorkerCore>(
      *samples_, *evaluation_,
      core::WorkerOptions{.rank = start.rank(),
                          .total_steps = spec_.total_steps(),
                          .device_count = spec_.devices_per_worker()});
  OnViewChange(start.view());
}

// The system closes what a process leaves open.
SimTask::~SimTask() {
  for (Stream& stream : streams_) {
    if (stream.link != nullptr) stream.link->Close(0);
  }
}

void SimTask::OnViewChange(const common::v1::View& view) {
  if (view.generation() > view_.generation()) view_ = view;
  Do(core::ViewGiven{
      view.lineage(), view.generation(), {view.lane_owners().begin(), view.lane_owners().end()}});
}

void SimTask::OnStop() { Do(core::StopOrder{}); }

void SimTask::BreakStreams() {
  for (Stream& stream : streams_) {
    if (stream.link != nullptr && random_.Chance(0.7)) stream.link->Break();
  }
}

void SimTask::Do(const core::Event& event) {
  for (const core::Effect& effect : core_->Step(event, queue_.now())) CarryOut(effect);
  const absl::Duration due = core_->NextDeadline();
  if (due < tick_at_) {
    tick_at_ = due;
    process_.At(due, [this, due] {
      if (tick_at_ == due) Tick();
    });
  }
}

void SimTask::Tick() {
  tick_at_ = absl::InfiniteDuration();
  Do(core::Tick{});
}

void SimTask::ConnectLater(int shard) {
  process_.After(random_.Between(absl::Milliseconds(50), absl::Milliseconds(300)),
                 [this, shard, lineage = lineage_] {
                   if (lineage == lineage_) Connect(shard);
                 });
}

void SimTask::Connect(int shard) {
  Stream& stream = streams_[shard];
  if (stream.link != nullptr) return;
  const int64_t number = stream.number = ++connections_;
  const auto current = [this, shard, number] {
    return shard < static_cast<int>(streams_.size()) && streams_[shard].number == number &&
           streams_[shard].link != nullptr;
  };
  stream.link = hooks_.connect(
      view_.shards(shard).address(),
      [this, shard, current](const std::string& bytes) {
        if (current()) OnBytes(shard, bytes);
      },
      [this, shard, current] {
        if (!current()) return;
        streams_[shard].link.reset();
        streams_[shard].open = false;
        ConnectLater(shard);
      });
  v1::ExchangeRequest message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_job_id(spec_.job_id());
  hello.set_spec_digest(digest_);
  hello.set_lineage(lineage_);
  hello.set_kind(v1::STREAM_KIND_DATA);
  hello.set_index(state_.rank());
  hello.set_have_version(stream.have);
  stream.link->Send(0, message.SerializeAsString(), /*in_order=*/true);
}

void SimTask::OnBytes(int shard, const std::string& bytes) {
  Stream& stream = streams_[shard];
  const std::vector<absl::string_view> pieces = {bytes};
  auto decoded = param_store::wire::DecodeResponse(pieces);
  CAPSTAN_CHECK(decoded.ok());
  if (decoded->message.has_hello()) {
    stream.open = true;
    for (const Pushed& pushed : pushed_)
      SendFrames(shard, pushed);  // the old stream may have lost them
    return;
  }
  if (decoded->message.has_ack()) {
    const v1::FrameAck& ack = decoded->message.ack();
    const bool corrupt = std::find(ack.outcomes().begin(), ack.outcomes().end(),
                                   v1::FRAME_OUTCOME_CORRUPT) != ack.outcomes().end();
    for (const Pushed& pushed : pushed_) {
      if (corrupt && ack.step() == version_ && pushed.node.first_lane == ack.first_lane() &&
          pushed.node.lane_count == ack.lane_count()) {
        SendFrames(shard, pushed);
      }
    }
    return;
  }
  if (!decoded->message.has_weights()) return;
  const v1::WeightFrame& frame = decoded->message.weights();
  if (frame.version() <= stream.have || frame.version() < stream.incoming) return;
  if (frame.version() > stream.incoming) {
    stream.incoming = frame.version();
    stream.chunks.clear();
    stream.next.assign(stream.weights.size(), 0.0f);
  }
  stream.stop = frame.stop();
  stream.evaluate = frame.evaluate();
  const auto& route = view_.shards(shard);
  const int64_t base = layout_->ChunkRange(route.first_chunk()).offset;
  param_store::wire::PayloadReader reader(decoded->payload);
  std::vector<absl::string_view> chunk_pieces;
  for (int i = 0; i < frame.crc32c_size(); ++i) {
    const training::FlatRange range = layout_->ChunkRange(frame.first_chunk() + i);
    CAPSTAN_CHECK(reader.Next(4 * range.size, &chunk_pieces));
    if (param_store::wire::Crc32cOf(chunk_pieces) != frame.crc32c(i)) {
      return stream.link->Break();  // DATA_LOSS: opened again, and sent again
    }
    param_store::wire::CopyFloats(
        chunk_pieces, absl::MakeSpan(stream.next).subspan(range.offset - base, range.size));
    stream.chunks.insert(frame.first_chunk() + i);
  }
  if (static_cast<int>(stream.chunks.size()) < route.chunk_count()) return;
  stream.have = stream.incoming;
  stream.weights = stream.next;
  CheckWhole();
}

// All shards have the same version: it is whole.
void SimTask::CheckWhole() {
  const int64_t version = streams_[0].have;
  for (const Stream& stream : streams_) {
    if (stream.have != version) return;
  }
  if (version <= version_) return;
  version_ = version;
  pushed_.clear();
  weights_.resize(layout_->total_floats());
  for (size_t shard = 0; shard < streams_.size(); ++shard) {
    const auto& route = view_.shards(static_cast<int>(shard));
    const int64_t base = layout_->ChunkRange(route.first_chunk()).offset;
    std::copy(streams_[shard].weights.begin(), streams_[shard].weights.end(),
              weights_.begin() + base);
  }
  hooks_.assembled(lineage_, version, weights_);
  Do(core::WeightsComplete{lineage_, version, streams_[0].stop, streams_[0].evaluate});
}

void SimTask::SendFrames(int shard, const Pushed& pushed) {
  const Stream& stream = streams_[shard];
  if (stream.link == nullptr) return;
  const auto& route = view_.shards(shard);
  for (const training::ChunkRun& run :
       training::FramesOf(*layout_, {route.first_chunk(), route.chunk_count()}, 1 << 16)) {
    v1::Frame frame;
    frame.set_step(version_);
    frame.set_first_lane(pushed.node.first_lane);
    frame.set_lane_count(pushed.node.lane_count);
    frame.set_first_chunk(run.first_chunk);
    for (int32_t chunk = run.first_chunk; chunk < run.end(); ++chunk) {
      const training::FlatRange range = layout_->ChunkRange(chunk);
      frame.add_crc32c(
          training::Crc32c({reinterpret_cast<const char*>(pushed.value->data() + range.offset),
                            static_cast<size_t>(4 * range.size)}));
    }
    const training::FlatRange range = training::RangeOf(*layout_, run);
    std::string bytes = param_store::wire::EncodePrefix(frame, 4 * range.size);
    bytes.append(reinterpret_cast<const char*>(pushed.value->data() + range.offset),
                 4 * range.size);
    stream.link->Send(0, bytes);
  }
}

void SimTask::CarryOut(const core::Effect& effect) {
  if (const auto* e = std::get_if<core::OpenLineage>(&effect)) {
    for (Stream& stream : streams_) {
      if (stream.link != nullptr) stream.link->Close(0);
    }
    lineage_ = e->lineage;
    version_ = -1;
    pushed_.clear();
    streams_.clear();
    streams_.resize(view_.shards_size());
    for (int shard = 0; shard < view_.shards_size(); ++shard) {
      const auto& route = view_.shards(shard);
      streams_[shard].weights.resize(
          training::RangeOf(*layout_, {route.first_chunk(), route.chunk_count()}).size);
      ConnectLater(shard);
    }
  } else if (const auto* e = std::get_if<core::ComputeLane>(&effect)) {
    if (works_.count(e->work) == 0) {
      works_[e->work].fold = std::make_unique<gpu_worker::NodeFold>(samples_->StepTree(e->step));
    }
    std::shared_ptr<gpu_worker::FloatBuffer> gradient = pool_->Lend();
    CAPSTAN_CHECK(version_ == e->step);
    toy_.Gradient(weights_, e->lineage, e->lane, e->step, gradient->span());
    process_.After(
        random_.Between(absl::Milliseconds(2), absl::Milliseconds(40)),
        [this, order = *e, gradient] {
          const auto work = works_.find(order.work);
          if (work != works_.end()) {
            CAPSTAN_CHECK(work->second.fold->Add({order.lane, 1}, gradient).ok());
          }
          Do(core::LaneComputed{order.device, order.work, order.lane,
                                toy_.Seal(order.lane, order.step,
                                          samples_->LaneSampleCount(order.step, order.lane))});
        });
  } else if (const auto* e = std::get_if<core::FoldAndPush>(&effect)) {
    // What a peer may not see change is a copy of its own: the fold goes on adding in place.
    const auto value = works_.at(e->work).fold->Value(e->node);
    CAPSTAN_CHECK(value != nullptr);
    std::shared_ptr<gpu_worker::FloatBuffer> copy = pool_->Lend();
    std::memcpy(copy->data(), value->data(), 4 * value->size());
    pushed_.push_back({e->node, copy});
    for (size_t shard = 0; shard < streams_.size(); ++shard) {
      if (streams_[shard].open) SendFrames(static_cast<int>(shard), pushed_.back());
    }
    process_.After(absl::Microseconds(100), [this, order = *e] {
      Do(core::NodePushed{order.work, order.node});
    });
  } else if (const auto* e = std::get_if<core::DropWork>(&effect)) {
    works_.erase(e->work);
  } else if (const auto* e = std::get_if<core::SendSeal>(&effect)) {
    v1::ExchangeRequest message;
    v1::StepSeal& seal = *message.mutable_seal();
    seal.set_step(e->step);
    seal.set_first_lane(e->node.first_lane);
    seal.set_lane_count(e->node.lane_count);
    seal.set_samples(e->sums.samples);
    seal.set_loss_sum(e->sums.loss_sum);
    seal.set_correct(e->sums.correct);
    if (streams_[0].open) streams_[0].link->Send(0, message.SerializeAsString());
  } else if (const auto* e = std::get_if<core::EvaluateBlock>(&effect)) {
    process_.After(
        random_.Between(absl::Milliseconds(1), absl::Milliseconds(30)), [this, order = *e] {
          Do(core::EvaluationComputed{order.device,
                                      order.lineage,
                                      order.version,
                                      order.block,
                                      {evaluation_->Block(order.block).sample_count, 0.5, 1}});
        });
  } else if (const auto* e = std::get_if<core::SendEvaluationPart>(&effect)) {
    v1::ExchangeRequest message;
    v1::EvaluationPart& part = *message.mutable_evaluation();
    part.set_version(e->version);
    part.set_block(static_cast<int32_t>(e->block));
    part.set_samples(e->sums.samples);
    part.set_correct(e->sums.correct);
    part.set_loss_sum(e->sums.loss_sum);
    if (streams_[0].open) streams_[0].link->Send(0, message.SerializeAsString());
  } else if (const auto* e = std::get_if<core::WriteWeights>(&effect)) {
    process_.After(random_.Between(absl::Milliseconds(1), absl::Milliseconds(50)),
                   [this, order = *e] {
                     files_.set_lineage(order.lineage);
                     files_.set_step(order.version);
                     files_.clear_files();
                     common::v1::FileInfo& file = *files_.add_files();
                     file.set_name("weights.safetensors");
                     file.set_size_bytes(100);
                     file.set_sha256(std::string(32, 'w'));
                     *state_.mutable_files() = files_;
                     state_.set_weights_sha256(std::string(64, 'a'));
                     Do(core::WeightsWritten{order.lineage, order.version});
                     hooks_.changed();
                   });
  } else if (const auto* e = std::get_if<core::ReportState>(&effect)) {
    state_.set_phase(PhaseOf(e->phase));
    state_.set_lineage(e->lineage);
    state_.set_generation(e->generation);
    state_.set_step(e->step);
    state_.set_reason(e->reason);
    state_.set_message(e->message);
    hooks_.changed();
  } else if (std::holds_alternative<core::Exit>(effect)) {
    hooks_.changed();
  }
}

}  // namespace capstan::sim
