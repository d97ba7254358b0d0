#include "gpu_worker/task/local_exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gpu_worker/data/failure.h"
#include "param_store/checkpoint/base_weights.h"
#include "param_store/checkpoint/load_checkpoint.h"
#include "services/check/check.h"
#include "services/check/mutant.h"
#include "services/logging/log.h"
#include "training/optim/apply.h"
#include "training/optim/trust_rule.h"
#include "training/spec/lead_messages.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::gpu_worker {

using exchange::CompleteWeights;
using training::LaneBlock;
using training::SealSums;

namespace {

// Without trust ratios.
training::VersionUpdate UpdateOf(const training::Decision& decision) {
  return {.learning_rate = decision.learning_rate,
          .gradient_scale = decision.gradient_scale,
          .clip_factor = decision.clip_factor,
          .applied_steps = decision.applied_steps};
}

}  // namespace

LocalExchange::LocalExchange(std::shared_ptr<const Job> job, services::Strand& strand,
                             Callbacks callbacks, LocalCallbacks local, Base base)
    : job_(std::move(job)),
      strand_(strand),
      callbacks_(std::move(callbacks)),
      local_(std::move(local)),
      base_(std::move(base)),
      states_(job_->optimizer->state_floats_per_weight()),
      norms_(training::spec::ClipNorm(job_->spec) > 0
                 ? std::optional<training::NormTree>(job_->layout)
                 : std::nullopt),
      pieces_(training::PiecesFor(*job_->optimizer, job_->layout)),
      pool_(job_->layout.total_floats()) {
  if (states_ > 0) state_pool_.emplace(job_->layout.total_floats() * states_);
}

LocalExchange::~LocalExchange() { *alive_ = false; }

absl::Status LocalExchange::Open(const exchange::Route& route) {
  if (!route.shards.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("kvstore ", job_->spec.spec().kvstore().type(),
                                                   ": ", route.shards.size(),
                                                   " shards in the view, want none"));
  }
  lineage_ = route.lineage;
  if (absl::Status s = LoadBase(); !s.ok()) {
    lead_.reset();
    return s;
  }
  reported_epochs_ = lead_->epochs().size();
  reported_end_ = false;
  Publish({.stop = lead_->stopped(), .evaluate = lead_->evaluating()}, absl::ZeroDuration());
  // The files of a lineage lie in its own folder.
  if (lead_->stopped()) Save(/*last=*/true, training::spec::EncodeSnapshot(lead_->Snapshot()));
  return absl::OkStatus();
}

absl::Status LocalExchange::LoadBase() {
  const training::FlatLayout& layout = job_->layout;
  const job::v1::ResolvedSpec& spec = job_->spec;
  std::shared_ptr<FloatBuffer> weights = pool_.Lend();
  state_.reset();
  if (states_ > 0) state_ = std::make_shared<FloatBuffer>(layout.total_floats() * states_);
  param_store::LoadedCheckpoint loaded;
  param_store::BaseWeightsError error;
  const bool anew = base_.manifest.empty() || CAPSTAN_MUTANT("local_begins_anew");
  if (anew) {
    error = param_store::FillBaseWeights(
        layout,
        {training::spec::MakeInitOptions(spec), spec.spec().training().seed(),
         spec.spec().model().initial_weights()},
        {0, layout.total_floats()}, weights->span(), *base_.files);
    if (error.initial_statistics) {
      services::Log(services::kWarning, "statistics_begin_anew")
          .Kv("initial_weights", spec.spec().model().initial_weights());
    }
  } else {
    param_store::CheckpointRequest request;
    request.folder = base_.manifest;
    request.job_id = spec.job_id();
    request.training_digest = spec.training_digest();
    request.layout = &layout;
    request.run = {0, layout.chunk_count()};
    request.state_floats_per_weight = states_;
    request.files = base_.files;
    error = param_store::LoadCheckpoint(request, weights->span(),
                                        state_ == nullptr ? absl::Span<float>() : state_->span(),
                                        &loaded);
    if (error.reason.empty()) {
      error.status = training::CheckSnapshot(loaded.snapshot, loaded.version, spec.total_steps(),
                                             job_->samples);
      if (!error.status.ok()) error.reason = "CheckpointCorrupt";
    }
  }
  if (!error.reason.empty()) return data::WithReason(error.status, error.reason);
  weights_ = std::move(weights);
  training::LeadOptions options;
  options.lineage = lineage_;
  options.total_steps = spec.total_steps();
  options.evaluate_every_steps = spec.evaluate_every_steps();
  options.dynamic_loss_scale = training::spec::DynamicLossScale(spec);
  options.clip_norm = training::spec::ClipNorm(spec);
  if (norms_.has_value()) options.norm_chunks = norms_->chunk_count();
  options.pieces = pieces_;
  options.has_accuracy = !training::spec::HasNumericTargets(spec.spec());
  options.checkpoint_every_steps = spec.checkpoint_every_steps();
  options.checkpoint_every = training::spec::CheckpointEvery(spec);
  lead_ = std::make_unique<training::Lead>(options, job_->samples, job_->evaluation, job_->schedule,
                                           strand_.Now());
  if (!anew) lead_->Restore(loaded.snapshot, strand_.Now());
  lead_->GiveOrders(base_.orders);
  return absl::OkStatus();
}

void LocalExchange::GiveOrders(int64_t lineage, const std::vector<training::Order>& orders) {
  if (lead_ != nullptr && lineage == lineage_) lead_->GiveOrders(orders);
}

void LocalExchange::FilesWritten(int64_t lineage, int64_t step) {
  if (lead_ != nullptr && lineage == lineage_) lead_->FilesWritten(step);
}

void LocalExchange::FilesTaken(int64_t lineage, int64_t step) {
  if (lead_ != nullptr && lineage == lineage_) lead_->FilesTaken(step);
}

void LocalExchange::Publish(const Said& said, absl::Duration update) {
  fold_ = std::make_unique<LaneFold>(job_->samples.StepTree(lead_->step()));
  root_.reset();
  CompleteWeights whole;
  whole.lineage = lineage_;
  whole.version = lead_->step();
  whole.stop = said.stop;
  whole.evaluate = said.evaluate;
  whole.skipped = said.skipped;
  whole.saved = said.saved;
  whole.loss_scale = lead_->loss_scale();
  whole.weights = weights_;
  whole.pull = absl::ZeroDuration();
  whole.update = update;
  // Not from inside Push or SendSeal, because their caller is still busy with this step.
  strand_.Post([this, alive = alive_, whole] {
    if (*alive && whole.lineage == lineage_) callbacks_.on_weights(whole);
  });
}

void LocalExchange::PushPrefix(int64_t step, const LaneBlock& block,
                               std::shared_ptr<const FloatBuffer> gradient, int64_t ready_words) {
  if (ready_words < gradient->size()) return;  // nothing is sent, so wait for the complete sum
  if (lead_ == nullptr || step != lead_->step() || lead_->stopped()) return;
  const LaneBlock root = job_->samples.StepTree(step).root();
  if (block == root) {
    root_ = std::move(gradient);
  } else {
    // Lanes apart, or after a takeover inside a step. The fold writes into its argument, so it gets a
    // copy.
    std::shared_ptr<FloatBuffer> copy = pool_.Lend();
    std::copy(gradient->span().begin(), gradient->span().end(), copy->data());
    if (absl::Status s = fold_->Add(block, std::move(copy)); !s.ok()) return Fail(s);
    root_ = fold_->Value(root);
  }
  if (root_ == nullptr) return;
  const training::FlatLayout& layout = job_->layout;
  training::RootReport report =
      training::ReportRoots(layout, {0, layout.chunk_count()},
                            norms_.has_value() ? &*norms_ : nullptr, [&](int32_t chunk) {
                              const training::FlatRange range = layout.ChunkRange(chunk);
                              return root_->span().subspan(range.offset, range.size);
                            });
  if (pieces_ != nullptr && report.finite) MeasurePieces(report);
  Told(lead_->AddPart(step, 0, report, strand_.Now()));
}

void LocalExchange::MeasurePieces(training::RootReport& report) const {
  const training::FlatLayout& layout = job_->layout;
  const training::VersionUpdate update{.gradient_scale = 1 / lead_->loss_scale(),
                                       .applied_steps = lead_->step() - lead_->skipped_steps()};
  for (int32_t chunk = 0; chunk < layout.chunk_count(); ++chunk) {
    const int64_t offset = layout.ChunkRange(chunk).offset;
    training::MeasureChunk(
        layout, *pieces_, chunk, *job_->optimizer, update,
        {.in = weights_->data() + offset,
         .sum = root_->data() + offset,
         .state = state_ == nullptr ? nullptr : state_->data() + offset * states_},
        &report.pieces);
  }
}

void LocalExchange::PushKept(int64_t step, const LaneBlock& block, bool finite) {
  if (lead_ == nullptr || step != lead_->step() || lead_->stopped()) return;
  if (block != job_->samples.StepTree(step).root()) {
    return Fail(absl::InternalError(
        absl::StrCat("step ", step, ": the devices kept the sum of ", ToString(block),
                     ", want that of all lanes: the job has one task")));
  }
  Told(lead_->AddPart(step, 0, {finite, {}}, strand_.Now()));
}

void LocalExchange::SendSeal(int64_t step, const LaneBlock& block, const SealSums& sums) {
  if (lead_ != nullptr) Told(lead_->AddSeal(step, block, sums, strand_.Now()));
}

void LocalExchange::SendEvaluation(int64_t version, int64_t block, const SealSums& sums) {
  if (lead_ != nullptr) Told(lead_->AddEvaluation(version, block, sums, strand_.Now()));
}

void LocalExchange::Told(const absl::StatusOr<training::Told>& told) {
  if (!told.ok()) return Fail(told.status());
  if (*told == training::Told::kTaken) Decide();
}

void LocalExchange::Decide() {
  std::optional<training::DecidedStep> decided = lead_->Decide(strand_.Now());
  if (decided.has_value()) {
    if (local_.on_line) local_.on_line(training::FormatStepLogLine(decided->line));
    Apply(decided->decision);
  }
  const bool end = lead_->complete() || lead_->suspended() || lead_->failure().has_value();
  const bool orders = decided.has_value() && !decided->decision.order_ids.empty();
  if (lead_->epochs().size() != reported_epochs_ || end != reported_end_ || orders) {
    reported_epochs_ = lead_->epochs().size();
    reported_end_ = end;
    local_.on_lead();
  }
}

// Makes version step+1 from version step. The lead already counts as if it existed.
void LocalExchange::Apply(const training::Decision& decision) {
  if (local_.on_update) return ApplyOnDevices(decision);
  const absl::Duration begin = strand_.Now();
  if (decision.apply) {
    CAPSTAN_CHECK(root_ != nullptr);
    std::shared_ptr<FloatBuffer> next = pool_.Lend();
    training::VersionUpdate update = UpdateOf(decision);
    std::vector<double> ratios;
    if (pieces_ != nullptr) {
      ratios = training::TrustRatios(job_->layout, *job_->optimizer, update, decision.tensor_norms);
      update.trust_ratios = ratios;
    }
    training::ApplyVersion(job_->layout, {0, next->size()}, *job_->optimizer, update,
                           {.out = next->data(),
                            .in = weights_->data(),
                            .sum = root_->data(),
                            .state = state_ == nullptr ? nullptr : state_->data()});
    weights_ = std::move(next);
  }
  Publish(SaidBy(decision), strand_.Now() - begin);
  if (decision.checkpoint) {
    Save(decision.stop, training::spec::EncodeSnapshot(lead_->Snapshot()));
  }
}

void LocalExchange::ApplyOnDevices(const training::Decision& decision) {
  DeviceUpdate update;
  update.lineage = lineage_;
  update.version = lead_->step();
  update.apply = decision.apply;
  update.step = UpdateOf(decision);
  if (!decision.stop && !decision.evaluate && !decision.checkpoint) {
    weights_.reset();
    state_.reset();
    local_.on_update(std::move(update));
    return Publish(SaidBy(decision), absl::ZeroDuration());
  }
  update.weights = pool_.Lend();
  // Only a checkpoint contains the state.
  if (decision.checkpoint && states_ > 0) update.state = state_pool_->Lend();
  // The lead of this version, because orders may arrive before the weights do.
  std::string lead = training::spec::EncodeSnapshot(lead_->Snapshot());
  update.done = [this, alive = alive_, lineage = lineage_, decision, lead, weights = update.weights,
                 state = update.state] {
    if (!*alive || lineage != lineage_) return;
    weights_ = weights;
    state_ = state;
    Publish(SaidBy(decision), absl::ZeroDuration());
    if (decision.checkpoint) Save(decision.stop, lead);
  };
  local_.on_update(std::move(update));
}

// On the host the next step overwrites the state in place, but the weights of a version never
// change.
void LocalExchange::Save(bool last, std::string lead) {
  Snapshot snapshot;
  snapshot.lineage = lineage_;
  snapshot.step = lead_->step();
  snapshot.last = last;
  snapshot.weights = weights_;
  if (local_.on_update) {
    snapshot.state = state_;
  } else if (state_ != nullptr) {
    std::shared_ptr<FloatBuffer> copy = state_pool_->Lend();
    std::copy(state_->span().begin(), state_->span().end(), copy->data());
    snapshot.state = std::move(copy);
  }
  snapshot.lead = std::move(lead);
  local_.on_checkpoint(std::move(snapshot));
}

void LocalExchange::Fail(const absl::Status& status) {
  if (failed_) return;
  failed_ = true;
  callbacks_.on_failed(status);
}

std::string LocalExchange::Waiting() const {
  if (lead_ == nullptr) return "";
  const training::LeadWaiting waiting = lead_->Waiting();
  if (waiting.empty()) return "";
  return absl::StrCat("step ", lead_->step(), ": lanes ", absl::StrJoin(waiting.lanes, ","),
                      ", evaluation blocks ", absl::StrJoin(waiting.evaluation_blocks, ","));
}

node::v1::LeadState LocalExchange::lead_state() const {
  return lead_ == nullptr ? node::v1::LeadState() : training::spec::MakeLeadState(*lead_, lineage_);
}

}  // namespace capstan::gpu_worker
