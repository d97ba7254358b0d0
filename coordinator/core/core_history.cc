// The history of a job's metrics, which people look at; nothing is decided by it.
#include <algorithm>
#include <cmath>
#include <utility>

#include "coordinator/core/core.h"
#include "services/timestamp/timestamp.h"

namespace capstan::coordinator::core {
namespace {

// Forward and backward, whether or not the device tells them apart.
double Computing(const node::v1::StepPhases& phases) {
  return phases.forward_backward() + phases.forward() + phases.backward();
}

constexpr int64_t kMaxSteps = int64_t{1} << 48;  // of one task: so many cannot be

// What all workers spent since they were asked last, per step.
void TakeBreakdown(JobRecord& job, job::v1::MetricPoint& point) {
  node::v1::StepPhases sum;
  for (Rank& rank : job.ranks) {
    const node::v1::StepPhases& now = rank.state.phases();
    node::v1::StepPhases& before = rank.counted;
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

void CoordinatorCore::NotePoint(JobRecord& job) {
  const node::v1::LeadState& lead = job.lead;
  job::v1::MetricPoint point;
  point.set_step(lead.step());
  point.set_lineage(lead.lineage());
  SetTime(wall_, point.mutable_time());
  if (lead.has_loss() && std::isfinite(lead.loss())) point.set_loss(lead.loss());
  if (lead.has_accuracy() && std::isfinite(lead.accuracy())) point.set_accuracy(lead.accuracy());
  if (lead.has_learning_rate()) point.set_learning_rate(lead.learning_rate());
  if (lead.samples_per_second() > 0) point.set_samples_per_second(lead.samples_per_second());
  TakeBreakdown(job, point);
  job.history.Add(std::move(point));
}

void CoordinatorCore::SaveHistory(JobRecord& job) {
  for (auto& [number, page] : job.history.TakeChangedPages()) {
    Emit(Persist{HistoryPage{job.id, number, std::move(page)}});
  }
}

// Of jobs at rest it is saved with them.
void CoordinatorCore::SaveHistories() {
  if (!Due(histories_saved_, options_.history_save)) return;
  histories_saved_ = now_;
  for (const auto& entry : active_) SaveHistory(*entry.second);
}

}  // namespace capstan::coordinator::core
