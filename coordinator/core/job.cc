#include "coordinator/core/job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/scheduler/gang.h"
#include "services/timestamp/timestamp.h"
#include "training/spec/validate.h"

namespace capstan::coordinator::core {
namespace {

constexpr double kDefaultStallSeconds = 300;

}  // namespace

void Job::ChangeSpec(job::v1::JobSpec spec) {
  what_.spec = std::move(spec);
  what_.spec_changed = true;
}

std::vector<int32_t> Job::Shares() const {
  return members_.Shares(resolved().has_value() ? resolved()->devices_per_worker() : 1);
}

int Job::living_workers() const {
  return members_.LivingWorkers(resolved().has_value() ? resolved()->devices_per_worker() : 1);
}

int Job::LackingWorkers() const {
  if (resting() || cancel_asked() || !in_history() || shards().empty()) return 0;
  // The next lineage of a job that keeps residuals begins only with a worker.
  const bool begins = recovery_.wanted() && LanesAreFixed() && members_.living() == 0;
  if (recovery_.wanted() && !begins) return 0;
  if (members_.living() > 0 && (lead().complete() || SuspendOrdered())) return 0;
  if ((lead().suspended() && !begins) || EndIsReported()) return 0;
  return std::max(0, std::min(resolved()->num_workers(), resolved()->lanes()) - living_workers());
}

bool Job::EndIsReported() const {
  if (!in_history() || !lead().complete() || !written_.has_weights()) return false;
  return std::all_of(shards().begin(), shards().end(), [this](const Shard& shard) {
    return written_.Of(shard.index, resolved()->total_steps()) != nullptr;
  });
}

std::optional<double> Job::MetricOf(int64_t step) const {
  if (!resolved().has_value()) return std::nullopt;
  return history_.MetricOf(step, *resolved());
}

bool Job::SmallerIsBetter() const {
  return resolved().has_value() && resolved()->spec().evaluation().metric() == "loss";
}

absl::Duration Job::Deadline() const {
  const job::v1::Limits& limits = spec().limits();
  const double seconds =
      limits.has_active_deadline_seconds() ? limits.active_deadline_seconds() : 0;
  return seconds > 0 ? absl::Seconds(seconds) : absl::InfiniteDuration();
}

absl::Duration Job::StallTimeout() const {
  const job::v1::Limits& limits = spec().limits();
  const double seconds =
      limits.has_stall_timeout_seconds() ? limits.stall_timeout_seconds() : kDefaultStallSeconds;
  return seconds > 0 ? absl::Seconds(seconds) : absl::InfiniteDuration();
}

bool Job::SuspendOrdered() const {
  const SavedManifest* last = checkpoints_.Last();
  return changes_.SuspendOrdered(last == nullptr ? std::vector<int64_t>() : last->orders);
}

bool Job::HasItsData(const Task& task) const {
  if (!task.probed) return false;
  return lineages().Lists(task) ||
         (task.probe.reason().empty() && SameData(task.probe.dataset(), resolved()->dataset()));
}

bool Job::KeepsResiduals() const {
  return resolved().has_value() && training::spec::KeepsResiduals(resolved()->spec());
}

bool Job::DropsResiduals() const {
  return resolved().has_value() && training::spec::HasErrorFeedback(resolved()->spec()) &&
         !KeepsResiduals();
}

bool Job::IsAble(const Task& task) const {
  return !task.lost && task.present && task.state.phase() == node::v1::TASK_PHASE_RUNNING &&
         task.state.lineage() == view().lineage();
}

bool Job::ReadsSlowly(const Task& task) const {
  const auto& readers = lead().slow_readers();
  return std::any_of(readers.begin(), readers.end(),
                     [&task](const auto& reader) { return reader.rank() == task.index; });
}

const Task* Job::LaneZeroOwner() const {
  const int32_t owner = lineages_.OwnerOfLaneZero();
  return owner >= 0 && owner < static_cast<int32_t>(tasks().size())
             ? &tasks()[static_cast<size_t>(owner)]
             : nullptr;
}

void Job::AddEvent(absl::Time wall, const std::string& type, const std::string& message) {
  job::v1::Event event;
  SetTime(wall, event.mutable_time());
  event.set_type(type);
  event.set_message(message);
  event.set_step(history_.progress().step());
  events_.Add(std::move(event));
  AddLog(wall, type == "Failed" || type == "Consequence" ? "error" : "info",
         message.empty() ? type : absl::StrCat(type, ": ", message));
}

void Job::AddLog(absl::Time wall, const std::string& level, const std::string& text) {
  job::v1::LogLine line;
  SetTime(wall, line.mutable_time());
  line.set_role(common::v1::ROLE_COORDINATOR);
  line.set_level(level);
  line.set_text(text);
  logs_.Append(std::move(line));
}

job::v1::SavedCheckpoint Job::Described(const SavedManifest& manifest) const {
  job::v1::SavedCheckpoint out = manifest.saved;
  const std::optional<double> metric = MetricOf(out.step());
  if (metric.has_value()) out.set_metric(*metric);
  out.set_smaller_is_better(SmallerIsBetter());
  return out;
}

std::vector<job::v1::SavedCheckpoint> Job::SavedCheckpoints() const {
  std::vector<job::v1::SavedCheckpoint> out;
  for (auto it = checkpoints_.all().rbegin(); it != checkpoints_.all().rend(); ++it) {
    out.push_back(Described(*it));
  }
  return out;
}

std::optional<job::v1::SavedCheckpoint> Job::FindCheckpoint(const std::string& id) const {
  const SavedManifest* const found = checkpoints_.Find(id);
  if (found == nullptr) return std::nullopt;
  return Described(*found);
}

std::set<std::string> Job::NodesOfTasks() const {
  std::set<std::string> names;
  for (const Task& task : tasks()) names.insert(task.node);
  return names;
}

Job::News Job::TakeNews() {
  const News news{state() != told_state_, view().generation() != told_generation_};
  told_state_ = state();
  told_generation_ = view().generation();
  return news;
}

bool SameData(const common::v1::DatasetInfo& a, const common::v1::DatasetInfo& b) {
  return a.train_samples() == b.train_samples() && a.test_samples() == b.test_samples() &&
         a.channels() == b.channels() && a.height() == b.height() && a.width() == b.width() &&
         a.num_classes() == b.num_classes() && a.train_batches() == b.train_batches() &&
         a.target_size() == b.target_size();
}

absl::Status CheckOwner(const Job& job, const Caller& caller) {
  if (caller.any_job || (!caller.name.empty() && caller.name == job.owner()))
    return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("job ", job.id(), " is ", job.owner().empty() ? "nobody's" : job.owner() + "'s",
                   ", not ", caller.name, "'s; an admin may, too"));
}

std::optional<std::string> VersionOf(const Job& job, const NodeTable& nodes) {
  for (const Shard& shard : job.shards()) {
    const Node* node = nodes.FindIncarnation(shard.node, shard.incarnation);
    if (!shard.lost && node != nullptr) return node->reg().version();
  }
  for (const Task& task : job.tasks()) {
    const Node* node = nodes.FindIncarnation(task.node, task.incarnation);
    if (!task.lost && node != nullptr) return node->reg().version();
  }
  return std::nullopt;
}

std::string WorkersText(int workers, size_t nodes) {
  std::string text = absl::StrCat(workers, workers == 1 ? " worker" : " workers");
  if (static_cast<size_t>(workers) > nodes) {
    absl::StrAppend(&text, " on ", nodes, nodes == 1 ? " node" : " nodes");
  }
  return text;
}

}  // namespace capstan::coordinator::core
