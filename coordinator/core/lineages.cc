#include "coordinator/core/lineages.h"

#include <algorithm>
#include <utility>

namespace capstan::coordinator::core {
namespace {

void SetMembers(const std::vector<int32_t>& owners, const std::vector<Task>& tasks,
                common::v1::View& view) {
  view.clear_lane_owners();
  for (const int32_t owner : owners) view.add_lane_owners(owner);
  view.clear_workers();
  for (const Task& task : tasks) {
    if (task.lost || !task.probed) continue;  // a joiner enters once its data are known
    common::v1::WorkerRef* worker = view.add_workers();
    worker->set_rank(task.index);
    worker->set_node(task.node);
  }
}

}  // namespace

std::vector<int32_t> Lineages::Owners() const {
  return {view_.lane_owners().begin(), view_.lane_owners().end()};
}

bool Lineages::Lists(const Task& task) const {
  return std::any_of(view_.workers().begin(), view_.workers().end(),
                     [&task](const auto& worker) { return worker.rank() == task.index; });
}

int32_t Lineages::OwnerOfLaneZero() const {
  return view_.lane_owners().empty() ? -1 : view_.lane_owners(0);
}

bool Lineages::Owns(int32_t task) const {
  const auto& owners = view_.lane_owners();
  return std::find(owners.begin(), owners.end(), task) != owners.end();
}

int64_t Lineages::HighestKnown() const { return std::max(view_.generation(), floor_); }

common::v1::View Lineages::NextLineage(const std::vector<int32_t>& owners,
                                       const std::vector<Task>& tasks) const {
  common::v1::View view;
  view.set_lineage(HighestKnown() + 1);
  view.set_generation(view.lineage());
  SetMembers(owners, tasks, view);
  return view;
}

void Lineages::Begin(common::v1::View view, std::string base, int64_t base_step) {
  view_ = std::move(view);
  base_ = std::move(base);
  base_step_ = base_step;
}

void Lineages::BeginGeneration(const std::vector<int32_t>& owners, const std::vector<Task>& tasks) {
  view_.set_generation(view_.generation() + 1);
  SetMembers(owners, tasks, view_);
}

Lineages::Claim Lineages::Judge(int64_t lineage) {
  const int64_t known = HighestKnown();
  if (lineage <= known) return Claim::kKnown;
  if (lineage > known + kMostLineagesAhead) {
    return std::exchange(told_absurd_, true) ? Claim::kAbsurdAgain : Claim::kAbsurd;
  }
  floor_ = lineage;
  return Claim::kNew;
}

void Lineages::Load(common::v1::View view, std::string base, int64_t base_step) {
  Begin(std::move(view), std::move(base), base_step);
}

}  // namespace capstan::coordinator::core
