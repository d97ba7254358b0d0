#include "training/lead/lead.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/check/check.h"
#include "services/check/mutant.h"

namespace capstan::training {
namespace {

std::optional<double> IfFinite(double value) {
  return std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
}

absl::Status CheckCounts(absl::string_view what, const SealSums& sums, int64_t want_samples) {
  if (sums.samples != want_samples) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": ", sums.samples, " samples, want ", want_samples));
  }
  if (sums.correct < 0 || sums.correct > sums.samples) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": ", sums.correct, " correct, want 0..", sums.samples));
  }
  return absl::OkStatus();
}

// A planted bug: of each tensor only the last piece counts.
void KeepLastPieces(std::vector<PieceSquares>& pieces) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (size_t j = i + 1; j < pieces.size(); ++j) {
      if (pieces[j].tensor == pieces[i].tensor) pieces[i].weights = pieces[i].direction = 0;
    }
  }
}

}  // namespace

Lead::Lead(const LeadOptions& options, SamplePlan samples, EvalPlan evaluation, Schedule schedule,
           absl::Duration now)
    : options_(options),
      samples_(std::move(samples)),
      evaluation_(std::move(evaluation)),
      planned_schedule_(std::move(schedule)),
      norms_(options.clip_norm > 0 ? std::optional<NormTree>(options.norm_chunks) : std::nullopt),
      schedule_(planned_schedule_),
      seals_(samples_.lane_tree()),
      parts_(options.num_parts),
      loss_scale_(options.dynamic_loss_scale),
      last_checkpoint_(now),
      rate_start_(now) {
  CAPSTAN_CHECK(options_.total_steps >= 1 && options_.num_parts >= 1);
  CAPSTAN_CHECK(options_.evaluate_every_steps >= 0 && options_.max_nonfinite_steps >= 1);
  CAPSTAN_CHECK(options_.checkpoint_every_steps >= 0 &&
                options_.checkpoint_every > absl::ZeroDuration());
  BeginStep(now);
}

void Lead::BeginStep(absl::Duration now) {
  step_start_ = now;
  nonfinite_blocks_.clear();
  if (!stopped()) seals_.Reset(samples_.StepTree(step_));
  std::fill(parts_.begin(), parts_.end(), std::nullopt);
  square_sum_.reset();
  tensor_norms_.clear();
  missing_parts_ = options_.num_parts;
  blocks_.assign(evaluating_ ? evaluation_.block_count() : 0, std::nullopt);
  missing_blocks_ = static_cast<int64_t>(blocks_.size());
  CountKeptSeals(now);
}

int64_t Lead::NodeSamples(int64_t step, const LaneBlock& block) const {
  int64_t samples = 0;
  const int32_t end = std::min(block.first_lane + block.lane_count, samples_.lanes());
  for (int32_t lane = block.first_lane; lane < end; ++lane) {
    samples += samples_.LaneSampleCount(step, lane);
  }
  return samples;
}

absl::StatusOr<Told> Lead::KeepSeal(int64_t step, const LaneBlock& block, const SealSums& sums) {
  const absl::Status valid = samples_.StepTree(step).Validate(block);
  if (!valid.ok()) return valid;
  const absl::Status counts = CheckCounts(
      absl::StrCat("seal of step ", step, ", ", ToString(block)), sums, NodeSamples(step, block));
  if (!counts.ok()) return counts;
  const bool fresh = later_seals_[step].emplace(block.first_lane, sums).second;
  return fresh ? Told::kTaken : Told::kKnown;
}

void Lead::CountKeptSeals(absl::Duration now) {
  const auto kept = later_seals_.find(step_);
  if (kept == later_seals_.end()) return;
  if (!stopped()) {
    for (const auto& [lane, sums] : kept->second) {
      const LaneBlock block{lane, 1};
      CAPSTAN_CHECK(seals_.Add(block, sums).ok());
      CountSeal(block, sums, now);
    }
  }
  later_seals_.erase(kept);
}

void Lead::CountSeal(const LaneBlock& block, const SealSums& sums, absl::Duration now) {
  if (!std::isfinite(sums.loss_sum)) nonfinite_blocks_.push_back(block);
  NoteReady(now);
}

absl::StatusOr<Told> Lead::AddSeal(int64_t step, const LaneBlock& block, const SealSums& sums,
                                   absl::Duration now) {
  if (step < step_) return Told::kPast;
  if (options_.asynchronous && step > step_ && step < options_.total_steps && !stopped() &&
      block.lane_count == 1) {
    return KeepSeal(step, block, sums);
  }
  if (step > step_ || stopped()) {
    return absl::InvalidArgumentError(
        absl::StrCat("seal of step ", step, ": ahead of step ", step_));
  }
  const absl::Status valid = seals_.lanes().Validate(block);
  if (!valid.ok()) return valid;
  const absl::Status counts = CheckCounts(
      absl::StrCat("seal of step ", step, ", ", ToString(block)), sums, NodeSamples(step, block));
  if (!counts.ok()) return counts;
  const absl::StatusOr<Outcome> outcome = seals_.Add(block, sums);
  if (!outcome.ok()) return outcome.status();
  if (*outcome == Outcome::kCovered) return Told::kKnown;
  CountSeal(block, sums, now);
  return Told::kTaken;
}

void Lead::AddSquares() {
  std::vector<BlockSquares> squares;
  std::vector<PieceSquares> pieces;
  for (const std::optional<RootReport>& part : parts_) {
    if (!part->finite) return;
    squares.insert(squares.end(), part->squares.begin(), part->squares.end());
    pieces.insert(pieces.end(), part->pieces.begin(), part->pieces.end());
  }
  const auto fail = [this](const absl::Status& status) {
    failure_ = LeadFailure{"InternalError", absl::StrCat("step ", step_, ": ", status.message())};
  };
  if (norms_.has_value()) {
    const absl::StatusOr<double> total = norms_->Total(std::move(squares));
    if (!total.ok()) return fail(total.status());
    square_sum_ = *total;
    if (CAPSTAN_MUTANT("norm_of_the_last_part")) square_sum_ = parts_.back()->squares[0].square_sum;
  }
  if (options_.pieces != nullptr) {
    if (CAPSTAN_MUTANT("last_piece_is_the_tensor")) KeepLastPieces(pieces);
    absl::StatusOr<std::vector<TensorNorms>> norms = options_.pieces->Norms(std::move(pieces));
    if (!norms.ok()) return fail(norms.status());
    tensor_norms_ = *std::move(norms);
  }
}

absl::StatusOr<Told> Lead::AddPart(int64_t step, int32_t shard, const RootReport& report,
                                   absl::Duration now) {
  if (shard < 0 || shard >= options_.num_parts) {
    return absl::InvalidArgumentError(
        absl::StrCat("part of shard ", shard, ": want 0..", options_.num_parts - 1));
  }
  if (step < step_) return Told::kPast;
  if (step > step_ || stopped()) {
    return absl::InvalidArgumentError(
        absl::StrCat("part of step ", step, ": ahead of step ", step_));
  }
  if (parts_[shard].has_value()) return Told::kKnown;
  if (norms_.has_value() && report.finite) {
    const absl::Status squares = norms_->Check(report.squares);
    if (!squares.ok()) return squares;
  }
  if (options_.pieces != nullptr && report.finite) {
    const absl::Status pieces = options_.pieces->Check(report.pieces);
    if (!pieces.ok()) return pieces;
  }
  parts_[shard] = report;
  --missing_parts_;
  if (missing_parts_ == 0) AddSquares();
  NoteReady(now);
  return Told::kTaken;
}

absl::StatusOr<Told> Lead::AddEvaluation(int64_t version, int64_t block, const SealSums& sums,
                                         absl::Duration now) {
  if (version < step_) return Told::kPast;
  if (version > step_ || !evaluating_) {
    return absl::InvalidArgumentError(
        absl::StrCat("evaluation of version ", version, ": not ordered, the newest is ", step_));
  }
  if (block < 0 || block >= evaluation_.block_count()) {
    return absl::InvalidArgumentError(
        absl::StrCat("evaluation block ", block, ": want 0..", evaluation_.block_count() - 1));
  }
  const absl::Status counts = CheckCounts(absl::StrCat("evaluation block ", block), sums,
                                          evaluation_.Block(block).sample_count);
  if (!counts.ok()) return counts;
  if (blocks_[block].has_value()) return Told::kKnown;
  blocks_[block] = sums;
  if (--missing_blocks_ == 0 && ending_.has_value()) FinishEpoch();
  return Told::kTaken;
}

void Lead::NoteReady(absl::Duration now) {
  if (TrainingReady()) ready_at_ = now;  // nothing more of the step is accepted from now on
}

std::optional<DecidedStep> Lead::Decide(absl::Duration now) {
  if (failure_.has_value() || stopped() || !TrainingReady() ||
      (!Evaluated() && !CAPSTAN_MUTANT("evaluation_not_awaited")))
    return std::nullopt;

  const SealSums& sums = seals_.Root();
  const double loss = sums.loss_sum / static_cast<double>(sums.samples);
  std::vector<int32_t> bad_parts;
  for (int32_t shard = 0; shard < options_.num_parts; ++shard) {
    if (!parts_[shard]->finite) bad_parts.push_back(shard);
  }
  const bool finite = std::isfinite(loss) && bad_parts.empty();
  const double scale = loss_scale_.value();
  const bool counts = loss_scale_.Note(finite);
  nonfinite_in_a_row_ = finite ? 0 : nonfinite_in_a_row_ + (counts ? 1 : 0);
  if (nonfinite_in_a_row_ >= options_.max_nonfinite_steps) {
    std::string message = absl::StrCat("step ", step_, ": ");
    if (!nonfinite_blocks_.empty()) {
      absl::StrAppend(
          &message,
          options_.asynchronous ? "the loss or the gradient is not finite in "
                                : "the loss is not finite in ",
          absl::StrJoin(nonfinite_blocks_, ", ", [](std::string* out, const LaneBlock& block) {
            absl::StrAppend(out, ToString(block));
          }));
    } else if (!std::isfinite(loss)) {
      absl::StrAppend(&message, "the loss is not finite");
    } else {
      absl::StrAppend(&message, "the gradient is not finite on shard ",
                      absl::StrJoin(bad_parts, ", "));
    }
    absl::StrAppend(&message, ", for the ", nonfinite_in_a_row_, ". step in a row");
    failure_ = LeadFailure{"NonFiniteLoss", std::move(message)};
    return std::nullopt;
  }

  DecidedStep decided;
  Decision& decision = decided.decision;
  decision.step = step_;
  decision.apply = finite;
  decision.applied_steps = step_ - skipped_steps_;
  const bool last = step_ + 1 == options_.total_steps;
  TakeOrders(decision);
  decision.learning_rate = schedule_.LearningRate(step_);
  decision.gradient_scale = 1 / scale;
  decision.loss_scale = loss_scale_.value();
  if (options_.asynchronous) {
    decision.base_learning_rate = ordered_rate_;
    decision.max_staleness = ordered_staleness_;
  }
  if (square_sum_.has_value() && finite) {
    const double norm = std::sqrt(*square_sum_) * decision.gradient_scale;
    if (norm > options_.clip_norm) decision.clip_factor = options_.clip_norm / norm;
    decided.line.gradient_norm = norm;
  }
  if (finite) decision.tensor_norms = std::move(tensor_norms_);
  decision.stop = last || suspended_;
  PlanCheckpoint(decision, now);
  const bool evaluated =
      evaluation_.block_count() > 0 && (last || (options_.evaluate_every_steps > 0 &&
                                                 (step_ + 1) % options_.evaluate_every_steps == 0));
  decision.evaluate = evaluated && !suspended_;

  const double seconds = absl::ToDoubleSeconds(ready_at_ - step_start_);
  StepLogLine& line = decided.line;
  line.lineage = options_.lineage;
  line.step = step_;
  line.epoch = samples_.EpochOf(step_) + 1;  // people count from 1
  line.loss = loss;
  line.learning_rate = decision.learning_rate;
  line.samples = sums.samples;
  line.seconds = seconds;

  if (samples_.StepInEpoch(step_) == 0) {
    epoch_ = EpochSums();
    epoch_.epoch = static_cast<int32_t>(samples_.EpochOf(step_)) + 1;
  }
  epoch_.seals += sums;
  epoch_.seconds += seconds;
  samples_used_ += sums.samples;
  if (!finite) {
    ++skipped_steps_;
    last_skipped_step_ = step_;
  }
  last_loss_ = IfFinite(loss);
  CountRate(sums.samples, now);

  if (last || samples_.StepInEpoch(step_) + 1 == samples_.steps_per_epoch()) ending_ = epoch_;

  last_decision_ = decision;
  ++step_;
  evaluating_ = decision.evaluate;
  BeginStep(now);
  if (ending_.has_value() && !evaluated) FinishEpoch();
  return decided;
}

void Lead::FinishEpoch() {
  const double samples = static_cast<double>(ending_->seals.samples);
  EpochRecord record;
  record.epoch = ending_->epoch;
  record.train_loss = IfFinite(ending_->seals.loss_sum / samples);
  if (options_.has_accuracy) {
    record.train_accuracy = static_cast<double>(ending_->seals.correct) / samples;
  }
  record.seconds = ending_->seconds;
  record.samples_per_second = IfFinite(samples / ending_->seconds);
  if (evaluating_) {
    SealSums sums;
    for (const std::optional<SealSums>& block : blocks_) sums += *block;
    record.validation_loss = IfFinite(sums.loss_sum / static_cast<double>(sums.samples));
    if (options_.has_accuracy) {
      record.validation_accuracy =
          static_cast<double>(sums.correct) / static_cast<double>(sums.samples);
    }
  }
  epochs_.push_back(record);
  ending_.reset();
}

// ---- Orders and checkpoints ----

void Lead::GiveOrders(const std::vector<Order>& orders) {
  for (const Order& order : orders) {
    const bool applied = std::any_of(applied_orders_.begin(), applied_orders_.end(),
                                     [&order](const Order& known) { return known.id == order.id; });
    if (!applied) orders_.emplace(order.id, order);
  }
}

// Takes the orders that take effect with this step, by id. Of two learning rates, or two bounds of
// staleness, the later one stays.
void Lead::TakeOrders(Decision& decision) {
  for (auto it = orders_.begin(); it != orders_.end();) {
    Order order = it->second;
    if (order.step.has_value() && *order.step > step_ && !CAPSTAN_MUTANT("order_at_another_step")) {
      ++it;
      continue;
    }
    it = orders_.erase(it);
    if (order.step.has_value() && *order.step < step_) continue;  // of another history
    switch (order.what) {
      case Order::What::kLearningRate:
        ordered_rate_ = order.learning_rate;
        schedule_ = planned_schedule_.WithBaseRate(ordered_rate_);
        break;
      case Order::What::kMaxStaleness:
        ordered_staleness_ = order.max_staleness;
        break;
      case Order::What::kCheckpoint:
        checkpoint_due_ = true;
        // The order's step is known to people, so this checkpoint does not wait.
        if (order.step.has_value()) decision.checkpoint = true;
        break;
      case Order::What::kSuspend:
        suspended_ = step_ + 1 < options_.total_steps;
        break;
    }
    order.step = step_;
    decision.order_ids.push_back(order.id);
    applied_orders_.push_back(order);
  }
}

void Lead::PlanCheckpoint(Decision& decision, absl::Duration now) {
  if (options_.checkpoint_every_steps > 0 && (step_ + 1) % options_.checkpoint_every_steps == 0) {
    checkpoint_due_ = true;
  }
  if (now - last_checkpoint_ >= options_.checkpoint_every) checkpoint_due_ = true;
  const bool may = untaken_.empty() ||
                   (newest_written_ && now - last_checkpoint_ >=
                                           static_cast<double>(untaken_.size()) * kUntakenPatience);
  if (decision.stop || (checkpoint_due_ && may)) decision.checkpoint = true;
  if (!decision.checkpoint) return;
  checkpoint_due_ = false;
  last_checkpoint_ = now;
  untaken_.push_back(step_ + 1);
  newest_written_ = false;
}

void Lead::FilesWritten(int64_t version) {
  if (!untaken_.empty() && untaken_.back() == version) newest_written_ = true;
}

void Lead::FilesTaken(int64_t version) {
  const auto taken = std::find(untaken_.begin(), untaken_.end(), version);
  if (taken != untaken_.end()) untaken_.erase(untaken_.begin(), taken + 1);
}

void Lead::CountRate(int64_t samples, absl::Duration now) {
  rate_samples_ += samples;
  const double seconds = absl::ToDoubleSeconds(now - rate_start_);
  // Before a second has passed, the first steps give a first estimate.
  if (seconds >= 1 || (samples_per_second_ == 0 && seconds > 0)) {
    samples_per_second_ = static_cast<double>(rate_samples_) / seconds;
  }
  if (seconds >= 1) {
    rate_start_ = now;
    rate_samples_ = 0;
  }
}

bool Lead::complete() const { return step_ == options_.total_steps && Evaluated(); }

LeadWaiting Lead::Waiting() const {
  LeadWaiting waiting;
  if (failure_.has_value()) return waiting;
  if (!stopped()) {
    waiting.lanes = seals_.MissingLanes();
    for (int32_t shard = 0; shard < options_.num_parts; ++shard) {
      if (!parts_[shard].has_value()) waiting.parts.push_back(shard);
    }
  }
  for (size_t block = 0; block < blocks_.size(); ++block) {
    if (!blocks_[block].has_value())
      waiting.evaluation_blocks.push_back(static_cast<int32_t>(block));
  }
  return waiting;
}

std::optional<double> Lead::last_learning_rate() const {
  if (!last_decision_.has_value()) return std::nullopt;
  return last_decision_->learning_rate;
}

std::optional<double> Lead::running_accuracy() const {
  if (epoch_.seals.samples == 0 || !options_.has_accuracy) return std::nullopt;
  return static_cast<double>(epoch_.seals.correct) / static_cast<double>(epoch_.seals.samples);
}

}  // namespace capstan::training
