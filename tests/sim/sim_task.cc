#include "tests/sim/sim_task.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/task/job.h"
#include "param_store/checkpoint/residual_file.h"
#include "param_store/checkpoint/shard_file.h"
#include "services/check/check.h"
#include "services/check/mutant.h"
#include "training/fold/add.h"
#include "training/spec/lead_messages.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::sim {
namespace {

namespace core = exchange::task;
namespace sender = exchange::sender;

using exchange::CompleteWeights;

node::v1::TaskPhase PhaseOf(core::TaskPhase phase) {
  switch (phase) {
    case core::TaskPhase::kStarting:
      return node::v1::TASK_PHASE_STARTING;
    case core::TaskPhase::kRunning:
      return node::v1::TASK_PHASE_RUNNING;
    case core::TaskPhase::kFinished:
      return node::v1::TASK_PHASE_FINISHED;
    case core::TaskPhase::kFailed:
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
  asynchronous_ = training::spec::IsAsynchronous(spec_.spec());
  const bool compressed = training::spec::IsCompressed(spec_.spec());
  layout_ = *training::spec::MakeLayout(spec_);
  samples_ = *training::spec::MakeSamplePlan(spec_);
  evaluation_ = *training::spec::MakeEvalPlan(spec_);
  pool_ = std::make_unique<gpu_worker::BufferPool>(layout_->total_floats());
  const bool keeps_residuals = training::spec::KeepsResiduals(spec_.spec());
  if (compressed) {
    encoder_.emplace(
        *layout_, training::spec::GradientFormatOf(spec_),
        keeps_residuals ? gpu_worker::Residuals::kKept : gpu_worker::Residuals::kDropped);
  }
  weights_.version = -1;
  state_.set_job_id(spec_.job_id());
  state_.set_rank(start.rank());
  state_.set_phase(node::v1::TASK_PHASE_STARTING);
  core_ = std::make_unique<core::TaskCore>(
      *samples_, *evaluation_,
      core::TaskCoreOptions{.rank = start.rank(),
                            .total_steps = spec_.total_steps(),
                            .device_count = spec_.devices_per_worker(),
                            .lanes_apart = asynchronous_ || compressed,
                            .asynchronous = asynchronous_,
                            .keeps_residuals = keeps_residuals});
  if (spec_.num_shards() == 0) {
    MakeLocal(start);
  } else {
    sender::CoreOptions options;
    options.job_id = spec_.job_id();
    options.spec_digest = digest_;
    options.rank = start.rank();
    options.asynchronous = asynchronous_;
    options.gradient_format = training::spec::GradientFormatOf(spec_);
    if (training::spec::WorkersUpdate(spec_.spec()))
      options.optimizer = *training::spec::MakeOptimizer(spec_);
    options.lanes = spec_.lanes();
    options.max_payload_bytes = 4 * layout_->chunk_floats();  // one chunk a frame
    sender_ = std::make_unique<sender::Core>(*layout_, std::move(options));
  }
  base_manifest_ = start.base_manifest();
  OnViewChange(start.view(), base_manifest_);
}

// Like Task::MakeExchange.
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

// Like Task::SaveShardFile.
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
    if (snapshot.state != nullptr) tensors.state = snapshot.state->span();
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

// Like Task::Do(ReadResiduals).
void SimTask::ReadResiduals(const core::ReadResiduals& read) {
  if (base_manifest_.empty()) {
    state_.set_reads_residuals(false);
    for (const int32_t lane : read.lanes) encoder_->Begin(lane, nullptr);
    process_.After({}, [this, read] { Do(core::ResidualsRead{read.lineage, 0}); });
    return;
  }
  state_.set_reads_residuals(!read.lanes.empty());
  process_.After(random_.Between(absl::Milliseconds(1), absl::Milliseconds(60)), [this, read] {
    if (read.lineage != lineage_) return;
    std::vector<std::shared_ptr<gpu_worker::FloatBuffer>> buffers;
    std::vector<absl::Span<float>> residuals;
    for (size_t i = 0; i < read.lanes.size(); ++i) {
      buffers.push_back(std::make_shared<gpu_worker::FloatBuffer>(layout_->total_floats()));
      residuals.push_back(buffers.back()->span());
    }
    param_store::ResidualRequest request;
    request.folder = base_manifest_;
    request.job_id = spec_.job_id();
    request.training_digest = spec_.training_digest();
    request.layout = &*layout_;
    request.lanes = read.lanes;
    request.files = &files_;
    int64_t version = 0;
    const auto error = param_store::LoadResiduals(request, residuals, &version);
    state_.set_reads_residuals(false);
    if (!error.reason.empty()) {
      state_.set_refuses_base(true);
      return Do(core::Failed{error.reason, std::string(error.status.message())});
    }
    for (size_t i = 0; i < read.lanes.size(); ++i) {
      encoder_->Begin(read.lanes[i], CAPSTAN_MUTANT("residuals_begin_anew") ? nullptr : buffers[i]);
    }
    Do(core::ResidualsRead{read.lineage, version});
  });
}

// Like Task::Do(WriteResiduals).
void SimTask::WriteResiduals(const core::WriteResiduals& write, const Residuals& residuals) {
  const auto later = [this] {
    return random_.Between(absl::Milliseconds(1), absl::Milliseconds(40));
  };
  process_.After(later(), [this, write, residuals, later] {
    if (write.lineage != lineage_) return;
    param_store::ResidualFileOptions options;
    options.folder = absl::StrCat(spec_.storage_path(), "/", write.lineage, "-", write.version);
    options.job_id = spec_.job_id();
    options.spec_digest = digest_;
    options.rank = state_.rank();
    options.lineage = write.lineage;
    options.step = write.version;
    std::map<int32_t, absl::Span<const float>> lanes;
    for (const auto& [lane, residual] : residuals) {
      const auto& now =
          CAPSTAN_MUTANT("residuals_of_a_later_step") ? encoder_->Residual(lane) : residual;
      lanes[lane] = now->span();
    }
    const auto file = param_store::WriteResidualFile(options, *layout_, lanes, files_);
    process_.After(later(), [this, write, residuals, file] {
      if (write.lineage != lineage_) return;
      if (file.ok()) {
        reports_.Written(write.version, *file);
      } else if (reports_.Failed(write.version, std::string(file.status().message()))) {
        process_.After(absl::Seconds(1),
                       [this, write, residuals] { WriteResiduals(write, residuals); });
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

// The system closes the streams that a process leaves open.
SimTask::~SimTask() {
  for (const auto& entry : streams_) entry.second.link->Close(0);
}

void SimTask::OnViewChange(const common::v1::View& view, const std::string& base_manifest) {
  if (view.lineage() > view_.lineage()) base_manifest_ = base_manifest;
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
  for (const auto& entry : streams_) {
    if (!random_.Chance(0.7)) continue;
    broken += entry.second.link->open() ? 1 : 0;
    entry.second.link->Break();
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
  // A planted bug: the task stops computing, and its service is not told.
  if (CAPSTAN_MUTANT("own_pause_orphans") && queue_.now() - tick_at_ > absl::Milliseconds(500))
    return OnStop();
  tick_at_ = absl::InfiniteDuration();
  Do(core::Tick{});
}

// ---- The exchange with shards: ExchangeClient over simulated connections ----

void SimTask::Deliver(const sender::Event& event) {
  for (const sender::Effect& effect : sender_->Step(event, queue_.now())) Carry(effect);
  const absl::Duration due = sender_->NextDeadline();
  if (due >= sender_tick_at_) return;
  sender_tick_at_ = due;
  process_.At(due, [this, due] {
    if (sender_tick_at_ != due) return;
    sender_tick_at_ = absl::InfiniteDuration();
    Deliver(sender::Tick{});
  });
}

void SimTask::Carry(const sender::Effect& effect) {
  if (const auto* e = std::get_if<sender::OpenStream>(&effect)) {
    Connect(*e);
  } else if (const auto* e = std::get_if<sender::SendMessage>(&effect)) {
    Send(e->stream, e->bytes);
  } else if (const auto* e = std::get_if<sender::SendFrame>(&effect)) {
    const sender::Core::Frame frame = sender_->Encode(*e);
    Send(e->stream, absl::StrCat(frame.prefix, frame.payload));
  } else if (const auto* e = std::get_if<sender::CancelStream>(&effect)) {
    streams_.at(e->stream).link->Close(0);
    process_.After(absl::Microseconds(50), [this, id = e->stream] {
      if (streams_.erase(id) > 0) Deliver(sender::StreamEnded{id, absl::CancelledError("by us")});
    });
  } else if (const auto* e = std::get_if<sender::DropStream>(&effect)) {
    streams_.at(e->stream).link->Close(0);
    streams_.erase(e->stream);
  } else if (const auto* e = std::get_if<sender::UseWeights>(&effect)) {
    OnWeights(e->weights);
  } else if (const auto* e = std::get_if<sender::Fail>(&effect)) {
    strand_.Post([this, status = e->status] {
      Do(core::Failed{gpu_worker::FailureReasonOf(status), std::string(status.message())});
    });
  }
}

void SimTask::Connect(const sender::OpenStream& open) {
  const sender::StreamId id = open.stream;
  streams_[id].link = hooks_.connect(
      view_.shards(open.shard).address(),
      [this, id](const std::string& bytes) {
        if (streams_.count(id) == 0) return;
        const std::vector<absl::string_view> pieces = {bytes};
        Deliver(sender::MessageArrived{id, pieces});
      },
      [this, id] {
        const auto stream = streams_.find(id);
        if (stream == streams_.end()) return;
        const absl::Status status = stream->second.link->status();
        streams_.erase(stream);
        Deliver(sender::StreamEnded{id, status});
      });
}

// Messages after Hello may be overtaken, repeated and damaged.
void SimTask::Send(sender::StreamId id, const std::string& bytes) {
  const auto stream = streams_.find(id);
  if (stream == streams_.end()) return;
  stream->second.link->Send(0, bytes, /*in_order=*/!std::exchange(stream->second.greeted, true));
}

void SimTask::OnWeights(const CompleteWeights& weights) {
  if (weights.lineage != lineage_) return;
  if (!asynchronous_ && weights.version <= weights_.version) return;
  if (encoder_.has_value()) {
    for (const int64_t step : weights.SkippedSteps()) encoder_->Skipped(step);
  }
  weights_ = weights;
  hooks_.assembled(weights);
  Do(core::WeightsComplete{lineage_, weights.version, weights.stop, weights.evaluate, weights.marks,
                           weights.floor, weights.max_staleness, weights.saved});
}

void SimTask::OpenRoute() {
  exchange::Route route;
  route.lineage = lineage_;
  for (const auto& shard : view_.shards()) {
    route.shards.push_back(
        {shard.node(), shard.address(), shard.first_chunk(), shard.chunk_count()});
  }
  if (sender_ != nullptr) return Deliver(sender::RouteGiven{std::move(route)});
  const absl::Status status = local_->Open(route);
  if (status.ok()) return;
  strand_.Post([this, status] {
    Do(core::Failed{gpu_worker::FailureReasonOf(status), std::string(status.message())});
  });
}

// Like Task::Do(FoldAndPush) of an asynchronous job.
void SimTask::PushLane(const core::FoldAndPush& push) {
  const auto value = works_.at(push.work).fold->Take(push.block.first_lane);
  CAPSTAN_CHECK(value != nullptr);
  const bool finite = push.finite_loss && training::AllFinite(value->span());
  if (finite) {
    Deliver(sender::BlockReady{push.step, push.block, value, value->size()});
  } else {
    Deliver(sender::SkipReady{push.step, push.block.first_lane});
  }
  process_.After(absl::Microseconds(50), [this, push, finite] {
    Do(core::BlockPushed{push.work, push.block, finite});
  });
}

// Like Task::Encoded.
void SimTask::PushCompressed(const core::FoldAndPush& push) {
  const int32_t lane = push.block.first_lane;
  const auto value = works_.at(push.work).fold->Take(lane);
  CAPSTAN_CHECK(value != nullptr);
  const auto encoded = encoder_->Encode({.step = push.step,
                                         .step_before = push.step - 1,
                                         .lane = lane,
                                         .loss_scale = weights_.loss_scale,
                                         .samples = samples_->StepSampleCount(push.step)},
                                        value->span());
  if (local_ != nullptr) {
    encoder_->Decode(*encoded, value->span());
    local_->Push(push.step, push.block, value);
  } else {
    Deliver(sender::BlockReady{push.step, push.block, encoded, encoded->size()});
  }
  process_.After(absl::Microseconds(50), [this, push] {
    Do(core::BlockPushed{push.work, push.block});
  });
}

// Like a block of several cards, it leaves in two parts. The peer must not see floats that are not
// final.
void SimTask::PushBlock(const core::FoldAndPush& push) {
  // Pushes a copy, because the fold continues to add in place and a peer must not see that.
  const auto value = works_.at(push.work).fold->Value(push.block);
  CAPSTAN_CHECK(value != nullptr);
  const std::shared_ptr<gpu_worker::FloatBuffer> copy = pool_->Lend();
  const auto all = value->span();
  const auto to = copy->span();
  std::copy(all.begin(), all.end(), to.begin());
  if (local_ != nullptr) {
    local_->Push(push.step, push.block, copy);
  } else {
    const int64_t ready = copy->size() / 2;
    std::fill(to.begin() + ready, to.end(), 77.0f);
    Deliver(sender::BlockReady{push.step, push.block, copy, ready});
  }
  std::vector<float> rest(all.begin() + copy->size() / 2, all.end());
  process_.After(absl::Microseconds(100), [this, push, copy, rest = std::move(rest)] {
    const bool current = push.lineage == lineage_ && push.step == weights_.version;
    if (sender_ != nullptr && current) {
      std::copy(rest.begin(), rest.end(), copy->data() + copy->size() / 2);
      Deliver(sender::BlockReady{push.step, push.block, copy, copy->size()});
    }
    Do(core::BlockPushed{push.work, push.block});
  });
}

void SimTask::CarryOut(const core::Effect& effect) {
  if (const auto* e = std::get_if<core::OpenLineage>(&effect)) {
    lineage_ = e->lineage;
    weights_ = CompleteWeights();
    weights_.version = -1;
    reports_.Reset(lineage_);
    if (encoder_.has_value()) encoder_->Forget();
    OpenRoute();
  } else if (const auto* e = std::get_if<core::ReadResiduals>(&effect)) {
    ReadResiduals(*e);
  } else if (const auto* e = std::get_if<core::WriteResiduals>(&effect)) {
    reports_.Expect(e->version, e->last);
    Residuals residuals;
    for (const int32_t lane : e->lanes) residuals[lane] = encoder_->Residual(lane);
    WriteResiduals(*e, residuals);
  } else if (const auto* e = std::get_if<core::ComputeLane>(&effect)) {
    if (works_.count(e->work) == 0) {
      works_[e->work].fold = std::make_unique<gpu_worker::LaneFold>(
          samples_->StepTree(e->step), asynchronous_ || encoder_.has_value()
                                           ? gpu_worker::LaneSums::kApart
                                           : gpu_worker::LaneSums::kTree);
    }
    std::shared_ptr<gpu_worker::FloatBuffer> gradient = pool_->Lend();
    CAPSTAN_CHECK(asynchronous_ || weights_.version == e->step);
    hooks_.computes(lineage_, e->lane, e->step, weights_.weights->span());
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
    if (asynchronous_) return PushLane(*e);
    if (encoder_.has_value()) return PushCompressed(*e);
    PushBlock(*e);
  } else if (const auto* e = std::get_if<core::DropWork>(&effect)) {
    works_.erase(e->work);
  } else if (const auto* e = std::get_if<core::SendSeal>(&effect)) {
    if (local_ != nullptr) return local_->SendSeal(e->step, e->block, e->sums);
    Deliver(sender::SealReady{e->step, e->block, e->sums, e->staleness});
  } else if (const auto* e = std::get_if<core::AskForWeights>(&effect)) {
    Deliver(sender::WeightsWanted{e->step, e->lane});
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
    Deliver(sender::EvaluationReady{e->version, e->block, e->sums});
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
