#include "tests/sim/sim_task.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "capstan/param_store/v1/param_store.pb.h"
#include "gpu_worker/task/job.h"
#include "param_store/checkpoint/shard_file.h"
#include "param_store/wire/frame_codec.h"
#include "services/check/check.h"
#include "services/check/mutant.h"
#include "training/chunks/placement.h"
#include "training/codec/crc32c.h"
#include "training/spec/lead_messages.h"
#include "training/spec/resolve.h"

namespace capstan::sim {
namespace {

namespace core = gpu_worker::core;
namespace v1 = param_store::v1;

using param_store::client::CompleteWeights;

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

SimTask::SimTask(EventQueue& queue, Random& random, SimDisk& disk, Process& process, int host,
                 Toy toy, const node::v1::StartTask& start, Hooks hooks)
    : queue_(queue),
      random_(random),
      process_(process),
      toy_(toy),
      hooks_(std::move(hooks)),
      strand_(queue, process),
      files_(disk, host) {
  auto spec = training::spec::ParseResolved(start.resolved_spec(), start.spec_digest());
  CAPSTAN_CHECK(spec.ok());
  spec_ = *std::move(spec);
  digest_ = start.spec_digest();
  layout_ = *training::spec::MakeLayout(spec_);
  samples_ = *training::spec::MakeSamplePlan(spec_);
  evaluation_ = *training::spec::MakeEvalPlan(spec_);
  pool_ = std::make_unique<gpu_worker::BufferPool>(layout_->total_floats());
  assembly_ = std::make_unique<param_store::client::WeightAssembly>(*layout_, *pool_);
  weights_.version = -1;
  state_.set_job_id(spec_.job_id());
  state_.set_rank(start.rank());
  state_.set_phase(node::v1::TASK_PHASE_STARTING);
  core_ = std::make_unique<core::WorkerCore>(
      *samples_, *evaluation_,
      core::WorkerOptions{.rank = start.rank(),
                          .total_steps = spec_.total_steps(),
                          .device_count = spec_.devices_per_worker()});
  if (spec_.num_shards() == 0) MakeLocal(start);
  OnViewChange(start.view());
}

// As Task::MakeExchange does it.
void SimTask::MakeLocal(const node::v1::StartTask& start) {
  auto job = gpu_worker::MakeJob(start.resolved_spec(), start.spec_digest());
  CAPSTAN_CHECK(job.ok());
  gpu_worker::LocalExchange::Base base;
  base.manifest = start.base_manifest();
  base.orders = *training::spec::ReadOrders(start.orders());
  base.files = &files_;
  gpu_worker::LocalExchange::Callbacks callbacks;
  callbacks.on_weights = [this](const CompleteWeights& weights) { OnWeights(weights); };
  callbacks.on_failed = [this](const absl::Status& status) {
    strand_.Post([this, status] {
      Do(core::Failed{gpu_worker::FailureReasonOf(status), std::string(status.message())});
    });
  };
  gpu_worker::LocalExchange::LocalCallbacks local;
  local.on_lead = [this] { hooks_.changed(); };
  local.on_line = [this](const std::string&) {
    hooks_.decided(lineage_, *local_->lead()->last_decision());
  };
  local.on_checkpoint = [this](const gpu_worker::LocalExchange::Snapshot& snapshot) {
    reports_.Expect(snapshot.step, snapshot.last);
    reports_.SetLead(snapshot.step, snapshot.lead);
    WriteShardFile(snapshot);
  };
  local_ = std::make_unique<gpu_worker::LocalExchange>(
      *std::move(job), strand_, std::move(callbacks), std::move(local), std::move(base));
}

// As Task::SaveShardFile does it.
void SimTask::WriteShardFile(const gpu_worker::LocalExchange::Snapshot& snapshot) {
  const auto later = [this] {
    return random_.Between(absl::Milliseconds(1), absl::Milliseconds(40));
  };
  process_.After(later(), [this, snapshot, later] {
    if (snapshot.lineage != lineage_) return;
    param_store::ShardFileOptions options;
    options.folder = absl::StrCat(spec_.storage_path(), "/", snapshot.lineage, "-", snapshot.step);
    options.job_id = spec_.job_id();
    options.spec_digest = digest_;
    options.lineage = snapshot.lineage;
    options.step = snapshot.step;
    param_store::ShardTensors tensors;
    tensors.layout = &*layout_;
    tensors.run = {0, layout_->chunk_count()};
    tensors.weights = snapshot.weights->span();
    const auto file = param_store::WriteShardFile(options, tensors, files_);
    process_.After(later(), [this, snapshot, file] {
      if (snapshot.lineage != lineage_) return;
      if (file.ok()) {
        reports_.Written(snapshot.step, *file);
      } else if (reports_.Failed(snapshot.step, std::string(file.status().message()))) {
        process_.After(absl::Seconds(1), [this, snapshot] { WriteShardFile(snapshot); });
      }
      hooks_.changed();
    });
  });
}

node::v1::TaskState SimTask::State() const {
  node::v1::TaskState state = state_;
  if (local_ != nullptr && core_->lineage() > 0) *state.mutable_lead() = local_->lead_state();
  reports_.Fill(state);
  return state;
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

void SimTask::OnGiveOrders(const node::v1::GiveOrders& give) {
  if (local_ != nullptr)
    local_->GiveOrders(give.lineage(), *training::spec::ReadOrders(give.orders()));
}

void SimTask::OnFilesTaken(const node::v1::FilesTaken& taken) {
  reports_.Taken(taken.lineage(), taken.step());
  if (local_ != nullptr) local_->FilesTaken(taken.lineage(), taken.step());
  hooks_.changed();
}

void SimTask::OnStop() { Do(core::StopOrder{}); }

int SimTask::BreakStreams() {
  int broken = 0;
  for (Stream& stream : streams_) {
    if (stream.link == nullptr || !random_.Chance(0.7)) continue;
    broken += stream.link->open() ? 1 : 0;
    stream.link->Break();
  }
  return broken;
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
  // A planted bug: it computes no more, and its service is not told.
  if (CAPSTAN_MUTANT("own_pause_orphans") && queue_.now() - tick_at_ > absl::Milliseconds(500))
    return OnStop();
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
  stream.have = assembly_->complete();
  hello.set_have_version(stream.have);
  hello.set_speaks(param_store::wire::kSpeaks);
  param_store::wire::SetCheck(&message, lineage_);
  stream.link->Send(0, message.SerializeAsString(), /*in_order=*/true);
}

void SimTask::OnBytes(int shard, const std::string& bytes) {
  Stream& stream = streams_[shard];
  const std::vector<absl::string_view> pieces = {bytes};
  auto decoded = param_store::wire::DecodeResponse(pieces);
  const bool checked = !CAPSTAN_MUTANT("no_header_check");
  if (!decoded.ok() || (checked && !decoded->Intact(lineage_))) return stream.link->Break();
  if (decoded->message.has_hello()) {
    stream.open = true;
    if (CAPSTAN_MUTANT("frames_not_sent_again")) return;
    for (const Pushed& pushed : pushed_)
      SendFrames(shard, pushed);  // the old stream may have lost them
    return;
  }
  if (decoded->message.has_ack()) {
    const v1::FrameAck& ack = decoded->message.ack();
    const bool corrupt = std::find(ack.outcomes().begin(), ack.outcomes().end(),
                                   v1::FRAME_OUTCOME_CORRUPT) != ack.outcomes().end();
    for (const Pushed& pushed : pushed_) {
      if (corrupt && ack.step() == weights_.version && pushed.node.first_lane == ack.first_lane() &&
          pushed.node.lane_count == ack.lane_count()) {
        SendFrames(shard, pushed);
      }
    }
    return;
  }
  if (!decoded->message.has_weights()) return;
  const v1::WeightFrame& frame = decoded->message.weights();
  const auto& route = view_.shards(shard);
  CAPSTAN_CHECK(frame.first_chunk() >= route.first_chunk() &&
                frame.first_chunk() + frame.crc32c_size() <=
                    route.first_chunk() + route.chunk_count());
  std::optional<CompleteWeights> whole;
  param_store::wire::PayloadReader reader(decoded->payload);
  std::vector<absl::string_view> chunk_pieces;
  for (int i = 0; i < frame.crc32c_size(); ++i) {
    const int32_t chunk = frame.first_chunk() + i;
    CAPSTAN_CHECK(reader.Next(4 * layout_->ChunkRange(chunk).size, &chunk_pieces));
    const int64_t version = frame.version() - (WritesIntoTheVersionBefore(frame.version()) ? 1 : 0);
    const absl::Span<float> to = assembly_->Destination(version, chunk, queue_.now());
    if (to.empty()) continue;  // overtaken
    if (param_store::wire::Crc32cOf(chunk_pieces) != frame.crc32c(i)) {
      return stream.link->Break();  // DATA_LOSS: opened again, and sent again
    }
    param_store::wire::CopyFloats(chunk_pieces, to);
    auto complete = assembly_->Arrived(
        frame.version(), chunk, {frame.stop(), frame.evaluate(), frame.loss_scale()}, queue_.now());
    if (complete.has_value()) whole = std::move(complete);
  }
  if (whole.has_value()) OnWeights(*whole);
}

// A planted bug: one buffer for the version under way and the one behind it, on streams that have
// long been open.
bool SimTask::WritesIntoTheVersionBefore(int64_t version) const {
  return CAPSTAN_MUTANT("one_buffer_for_two_versions") && version == assembly_->complete() + 2 &&
         assembly_->pending() > 0 &&
         std::all_of(streams_.begin(), streams_.end(), [this](const Stream& stream) {
           return stream.open && stream.have < assembly_->complete();
         });
}

void SimTask::OnWeights(const CompleteWeights& weights) {
  if (weights.lineage != lineage_ || weights.version <= weights_.version) return;
  weights_ = weights;
  pushed_.clear();
  hooks_.assembled(lineage_, weights.version, weights.weights->span());
  Do(core::WeightsComplete{lineage_, weights.version, weights.stop, weights.evaluate});
}

void SimTask::SendFrames(int shard, const Pushed& pushed) {
  const Stream& stream = streams_[shard];
  if (stream.link == nullptr) return;
  const auto& route = view_.shards(shard);
  for (const training::ChunkRun& run :
       training::FramesOf(*layout_, {route.first_chunk(), route.chunk_count()},
                          4 * layout_->chunk_floats())) {  // one chunk each
    v1::Frame frame;
    frame.set_step(weights_.version);
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
    std::string bytes = param_store::wire::EncodePrefix(frame, 4 * range.size, lineage_);
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
    weights_ = CompleteWeights();
    weights_.version = -1;
    pushed_.clear();
    reports_.Reset(lineage_);
    assembly_->Reset(lineage_);
    streams_.clear();
    streams_.resize(view_.shards_size());
    for (int shard = 0; shard < view_.shards_size(); ++shard) ConnectLater(shard);
    if (local_ == nullptr) return;
    param_store::client::Route route;
    route.lineage = lineage_;
    const absl::Status status = local_->Open(route);
    if (status.ok()) return;
    strand_.Post([this, status] {
      Do(core::Failed{gpu_worker::FailureReasonOf(status), std::string(status.message())});
    });
  } else if (const auto* e = std::get_if<core::ComputeLane>(&effect)) {
    if (works_.count(e->work) == 0) {
      works_[e->work].fold = std::make_unique<gpu_worker::NodeFold>(samples_->StepTree(e->step));
    }
    std::shared_ptr<gpu_worker::FloatBuffer> gradient = pool_->Lend();
    CAPSTAN_CHECK(weights_.version == e->step);
    toy_.Gradient(weights_.weights->span(), e->lineage, e->lane, e->step, weights_.loss_scale,
                  gradient->span());
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
    if (local_ != nullptr) local_->Push(e->step, e->node, copy);
    for (size_t shard = 0; shard < streams_.size(); ++shard) {
      if (streams_[shard].open) SendFrames(static_cast<int>(shard), pushed_.back());
    }
    process_.After(absl::Microseconds(100), [this, order = *e] {
      Do(core::NodePushed{order.work, order.node});
    });
  } else if (const auto* e = std::get_if<core::DropWork>(&effect)) {
    works_.erase(e->work);
  } else if (const auto* e = std::get_if<core::SendSeal>(&effect)) {
    if (local_ != nullptr) return local_->SendSeal(e->step, e->node, e->sums);
    v1::ExchangeRequest message;
    v1::StepSeal& seal = *message.mutable_seal();
    seal.set_step(e->step);
    seal.set_first_lane(e->node.first_lane);
    seal.set_lane_count(e->node.lane_count);
    seal.set_samples(e->sums.samples);
    seal.set_loss_sum(e->sums.loss_sum);
    seal.set_correct(e->sums.correct);
    param_store::wire::SetCheck(&message, lineage_);
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
    if (local_ != nullptr) return local_->SendEvaluation(e->version, e->block, e->sums);
    v1::ExchangeRequest message;
    v1::EvaluationPart& part = *message.mutable_evaluation();
    part.set_version(e->version);
    part.set_block(static_cast<int32_t>(e->block));
    part.set_samples(e->sums.samples);
    part.set_correct(e->sums.correct);
    part.set_loss_sum(e->sums.loss_sum);
    param_store::wire::SetCheck(&message, lineage_);
    if (streams_[0].open) streams_[0].link->Send(0, message.SerializeAsString());
  } else if (const auto* e = std::get_if<core::WriteWeights>(&effect)) {
    reports_.Expect(e->version, /*last=*/true);
    process_.After(random_.Between(absl::Milliseconds(1), absl::Milliseconds(50)),
                   [this, order = *e] {
                     if (order.lineage != lineage_) return;
                     common::v1::FileInfo file;
                     file.set_name("weights.safetensors");
                     file.set_size_bytes(100);
                     file.set_sha256(std::string(32, 'w'));
                     reports_.SetWeights(order.version, std::string(64, 'a'));
                     reports_.Written(order.version, file);
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
