// The snapshot of a lead, from which another lead continues at the same version.
#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "services/check/mutant.h"
#include "training/lead/lead.h"

namespace capstan::training {
namespace {

constexpr int32_t kMaxNonFinite = 1000;

absl::Status Broken(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("lead snapshot: ", what));
}

absl::Status CheckEpoch(absl::string_view name, const EpochSums& sums, int32_t want) {
  if (sums.epoch != want) {
    return Broken(absl::StrCat(name, ".epoch is ", sums.epoch, ", want ", want));
  }
  if (sums.seals.correct < 0 || sums.seals.correct > sums.seals.samples) {
    return Broken(absl::StrCat(name, ": ", sums.seals.correct, " of ", sums.seals.samples,
                               " samples are correct"));
  }
  if (!(sums.seconds >= 0) || !std::isfinite(sums.seconds)) {
    return Broken(absl::StrCat(name, ".seconds is ", sums.seconds));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSnapshot(const LeadSnapshot& snapshot, int64_t version, int64_t total_steps,
                           const SamplePlan& samples) {
  if (snapshot.step != version || version < 0 || version > total_steps) {
    return Broken(
        absl::StrCat("step is ", snapshot.step, ", want ", version, ", at most ", total_steps));
  }
  if (snapshot.samples_used < 0 || snapshot.skipped_steps < 0 || snapshot.skipped_steps > version) {
    return Broken(absl::StrCat(snapshot.samples_used, " samples used, ", snapshot.skipped_steps,
                               " of ", version, " steps skipped"));
  }
  if (snapshot.nonfinite_in_a_row < 0 || snapshot.nonfinite_in_a_row > kMaxNonFinite) {
    return Broken(absl::StrCat("nonfinite_in_a_row is ", snapshot.nonfinite_in_a_row));
  }
  if (!(snapshot.learning_rate >= 0) || !std::isfinite(snapshot.learning_rate)) {
    return Broken(absl::StrCat("learning_rate is ", snapshot.learning_rate));
  }
  if (snapshot.max_staleness.value_or(0) < -1) {
    return Broken(absl::StrCat("max_staleness is ", *snapshot.max_staleness));
  }
  const int32_t epoch = version == 0 ? 0 : static_cast<int32_t>(samples.EpochOf(version - 1)) + 1;
  absl::Status status = CheckEpoch("epoch", snapshot.epoch, epoch);
  if (status.ok() && snapshot.ending.has_value()) {
    const bool ends = version > 0 && (version == total_steps || samples.StepInEpoch(version) == 0);
    if (!ends) return Broken(absl::StrCat("an epoch ends at step ", version));
    status = CheckEpoch("ending", *snapshot.ending, epoch);
    if (status.ok() && snapshot.ending->seals.samples < 1) status = Broken("ending has no samples");
  }
  if (!status.ok()) return status;
  for (const EpochRecord& record : snapshot.epochs) {
    if (record.epoch < 1 || record.epoch > epoch) {
      return Broken(absl::StrCat("epochs: ", record.epoch, ", want 1..", epoch));
    }
  }
  if (snapshot.loss_scale != 0 &&
      !LossScale(/*dynamic=*/true).Restore(snapshot.loss_scale, snapshot.loss_scale_good_steps)) {
    return Broken(absl::StrCat("loss_scale is ", snapshot.loss_scale, " after ",
                               snapshot.loss_scale_good_steps, " good steps"));
  }
  std::set<int64_t> ids;
  for (const Order& order : snapshot.applied_orders) {
    if (order.id < 1 || !ids.insert(order.id).second || !order.step.has_value() ||
        *order.step < 0 || *order.step >= version) {
      return Broken(
          absl::StrCat("applied_orders: id ", order.id, " at step ", order.step.value_or(-1)));
    }
  }
  return absl::OkStatus();
}

LeadSnapshot Lead::Snapshot() const {
  LeadSnapshot snapshot;
  snapshot.step = step_;
  snapshot.samples_used = samples_used_;
  snapshot.skipped_steps = skipped_steps_;
  snapshot.nonfinite_in_a_row = nonfinite_in_a_row_;
  snapshot.epoch = epoch_;
  snapshot.ending = ending_;
  const size_t count = std::min(epochs_.size(), kSnapshotEpochs);
  snapshot.epochs.assign(epochs_.end() - static_cast<std::ptrdiff_t>(count), epochs_.end());
  snapshot.applied_orders = applied_orders_;
  snapshot.learning_rate = ordered_rate_;
  snapshot.max_staleness = ordered_staleness_;
  if (options_.dynamic_loss_scale) {
    snapshot.loss_scale = loss_scale_.value();
    snapshot.loss_scale_good_steps = loss_scale_.good_steps();
  }
  return snapshot;
}

void Lead::Restore(const LeadSnapshot& snapshot, absl::Duration now) {
  CAPSTAN_CHECK(step_ == 0 && snapshot.step <= options_.total_steps);
  step_ = snapshot.step;
  samples_used_ = snapshot.samples_used;
  skipped_steps_ = snapshot.skipped_steps;
  nonfinite_in_a_row_ = snapshot.nonfinite_in_a_row;
  epoch_ = snapshot.epoch;
  ending_ = snapshot.ending;
  epochs_ = snapshot.epochs;
  applied_orders_ = snapshot.applied_orders;
  ordered_rate_ = snapshot.learning_rate;
  ordered_staleness_ = snapshot.max_staleness;
  if (ordered_rate_ > 0) schedule_ = planned_schedule_.WithBaseRate(ordered_rate_);
  if (options_.dynamic_loss_scale && snapshot.loss_scale != 0 &&
      !CAPSTAN_MUTANT("loss_scale_begins_anew")) {
    CAPSTAN_CHECK(loss_scale_.Restore(snapshot.loss_scale, snapshot.loss_scale_good_steps));
  }
  evaluating_ = ending_.has_value() && evaluation_.block_count() > 0;
  BeginStep(now);
  if (ending_.has_value() && !evaluating_) FinishEpoch();
}

}  // namespace capstan::training
