#include "coordinator/core/history.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "services/timestamp/timestamp.h"

namespace capstan::coordinator::core {
namespace {

constexpr size_t kMaxEpochs = 10000;             // records of one job: what fits into one message
constexpr int64_t kMaxSteps = int64_t{1} << 48;  // of one task: a higher number is wrong

// Forward and backward, whether or not the device tells them apart.
double Computing(const node::v1::StepPhases& phases) {
  return phases.forward_backward() + phases.forward() + phases.backward();
}

// What all tasks spent since they were asked last, per step.
void TakeBreakdown(std::vector<Task>& tasks, job::v1::MetricPoint& point) {
  node::v1::StepPhases sum;
  for (Task& task : tasks) {
    const node::v1::StepPhases& now = task.state.phases();
    node::v1::StepPhases& before = task.counted;
    if (now.steps() < before.steps() || now.total() < before.total()) before.Clear();  // a new task
    if (now.steps() <= before.steps() || now.steps() > kMaxSteps) continue;
    sum.set_steps(sum.steps() + now.steps() - before.steps());
    sum.set_total(sum.total() + now.total() - before.total());
    sum.set_data_wait(sum.data_wait() + now.data_wait() - before.data_wait());
    sum.set_forward_backward(sum.forward_backward() + Computing(now) - Computing(before));
    sum.set_local_reduce(sum.local_reduce() + now.local_reduce() - before.local_reduce());
    sum.set_push(sum.push() + now.push() - before.push());
    sum.set_barrier_wait(sum.barrier_wait() + now.barrier_wait() - before.barrier_wait());
    sum.set_pull(sum.pull() + now.pull() - before.pull());
    sum.set_update(sum.update() + now.update() - before.update());
    sum.set_evaluate(sum.evaluate() + now.evaluate() - before.evaluate());
    before = now;
  }
  if (sum.steps() == 0) return;
  const double steps = static_cast<double>(sum.steps());
  job::v1::StepBreakdown& out = *point.mutable_breakdown();
  out.set_steps(sum.steps());
  out.set_total(sum.total() / steps);
  out.set_data_wait(sum.data_wait() / steps);
  out.set_forward_backward(sum.forward_backward() / steps);
  out.set_local_reduce(sum.local_reduce() / steps);
  out.set_push(sum.push() / steps);
  out.set_barrier_wait(sum.barrier_wait() / steps);
  out.set_pull(sum.pull() / steps);
  out.set_update(sum.update() / steps);
  out.set_evaluate(sum.evaluate() / steps);
}

}  // namespace

std::vector<common::v1::EpochRecord> History::AddEpochs(const node::v1::LeadState& lead) {
  std::vector<common::v1::EpochRecord> added;
  for (const common::v1::EpochRecord& epoch : lead.epochs()) {
    if (epoch.epoch() < 1) continue;
    if (!epochs_.empty() && epoch.epoch() <= epochs_.rbegin()->first) continue;
    epochs_.emplace(epoch.epoch(), epoch);
    if (epochs_.size() > kMaxEpochs) epochs_.erase(epochs_.begin());
    added.push_back(epoch);
  }
  return added;
}

void History::SetLead(const node::v1::LeadState& lead) {
  lead_ = lead;
  lead_.clear_epochs();
}

void History::TakeProgress(const job::v1::ResolvedSpec& spec) {
  samples_used_ = lead_.samples_used();
  progress_.set_step(lead_.step());
  progress_.set_total_steps(spec.total_steps());
  if (spec.steps_per_epoch() > 0) {
    const int64_t last = std::max<int64_t>(spec.total_steps() - 1, 0);
    progress_.set_epoch(
        static_cast<int32_t>(std::min(lead_.step(), last) / spec.steps_per_epoch() + 1));
  }
  progress_.clear_loss();
  if (lead_.has_loss()) progress_.set_loss(lead_.loss());
  progress_.clear_accuracy();
  if (lead_.has_accuracy()) progress_.set_accuracy(lead_.accuracy());
  if (lead_.has_learning_rate()) progress_.set_learning_rate(lead_.learning_rate());
  if (lead_.samples_per_second() > 0) {
    progress_.set_samples_per_second(lead_.samples_per_second());
    progress_.set_eta_seconds(static_cast<double>(spec.total_steps() - lead_.step()) *
                              static_cast<double>(spec.global_batch()) /
                              lead_.samples_per_second());
  }
}

void History::NoteUpdated(absl::Time wall) { SetTime(wall, progress_.mutable_updated_at()); }

void History::EnterFirstEpoch() {
  if (progress_.epoch() == 0) progress_.set_epoch(1);
}

void History::FindEnd(int64_t step, int64_t samples_used) {
  samples_used_ = samples_used;
  progress_.set_step(step);
}

void History::AddPoint(std::vector<Task>& tasks, absl::Time wall) {
  job::v1::MetricPoint point;
  point.set_step(lead_.step());
  point.set_lineage(lead_.lineage());
  SetTime(wall, point.mutable_time());
  if (lead_.has_loss() && std::isfinite(lead_.loss())) point.set_loss(lead_.loss());
  if (lead_.has_accuracy() && std::isfinite(lead_.accuracy())) point.set_accuracy(lead_.accuracy());
  if (lead_.has_learning_rate()) point.set_learning_rate(lead_.learning_rate());
  if (lead_.samples_per_second() > 0) point.set_samples_per_second(lead_.samples_per_second());
  TakeBreakdown(tasks, point);
  metrics_.Add(std::move(point));
}

std::optional<double> History::MetricOf(int64_t step, const job::v1::ResolvedSpec& spec) const {
  if (spec.steps_per_epoch() <= 0) return std::nullopt;
  // The last epoch may be cut short: its evaluation is that of version T all the same.
  const int64_t epoch = step == spec.total_steps() ? (step - 1) / spec.steps_per_epoch() + 1
                        : step % spec.steps_per_epoch() == 0 ? step / spec.steps_per_epoch()
                                                             : 0;
  const auto its = epochs_.find(static_cast<int32_t>(epoch));
  if (its == epochs_.end()) return std::nullopt;
  const common::v1::EpochRecord& record = its->second;
  const bool loss = spec.spec().evaluation().metric() == "loss";
  if (!(loss ? record.has_validation_loss() : record.has_validation_accuracy())) {
    return std::nullopt;
  }
  return loss ? record.validation_loss() : record.validation_accuracy();
}

void History::BeginLineage(int64_t base_step, int64_t samples_used, int64_t steps_per_epoch) {
  lead_.Clear();
  samples_used_ = samples_used;
  const int64_t whole = steps_per_epoch > 0 ? base_step / steps_per_epoch : 0;
  epochs_.erase(epochs_.upper_bound(static_cast<int32_t>(whole)), epochs_.end());
  progress_.set_step(base_step);
  progress_.clear_loss();
  progress_.clear_accuracy();
  progress_.clear_eta_seconds();
}

void History::Load(const job::v1::Progress& progress, std::vector<common::v1::EpochRecord> epochs,
                   int64_t samples_used) {
  progress_ = progress;
  for (common::v1::EpochRecord& epoch : epochs) epochs_[epoch.epoch()] = std::move(epoch);
  samples_used_ = samples_used;
}

}  // namespace capstan::coordinator::core
