#include "coordinator/core/lane_dealer.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/lane_owners.h"

namespace capstan::coordinator::core {
namespace {

constexpr int kStartPatience = 5;
constexpr absl::Duration kLateEnd = absl::Seconds(10);
constexpr absl::Duration kHangs = absl::Seconds(30);
constexpr int kHungLimits = 10;
// Of a lane, if others can take it too: to a task that still has to do with its own.
constexpr double kBusy = 1e9;

}  // namespace

void LaneDealer::AdvanceJoiners(Job& job) {
  bool enters = false;
  for (Task& task : job.tasks()) {
    if (task.lost || !task.probed || job.lineages().Lists(task)) continue;
    if (!task.probe.reason().empty() ||
        !SameData(task.probe.dataset(), job.resolved()->dataset())) {
      // It is no worker for this job. The job keeps the workers that it has.
      task.lost = true;
      task.why =
          task.probe.reason().empty() ? "its data are not those of the job" : task.probe.message();
      job.vacancies().NoteRefusal(task.node, ctx_.options().rejoin_delay, ctx_.now());
      job.AddEvent(ctx_.wall(), "JoinRefused", absl::StrCat(NameOf(task), ": ", task.why));
      ctx_.Changed(job);
      continue;
    }
    enters = true;
  }
  if (enters) {
    const auto& owners = job.view().lane_owners();
    const bool orphaned = std::all_of(owners.begin(), owners.end(), [&job](int32_t owner) {
      return job.tasks()[static_cast<size_t>(owner)].lost;
    });
    if (orphaned && !job.LanesAreFixed()) {
      generations_.TakeOverLanes(job);
    } else {
      generations_.NewGeneration(job, job.lineages().Owners(), "ViewChanged");
    }
  }
  if (job.lead().complete()) return;
  bool fresh = false;
  LaneCosts dealt;
  for (Task& task : job.tasks()) {
    if (!job.IsAble(task) || !job.lineages().Lists(task)) continue;
    if (!task.dealt && ctx_.now() >= task.deal_at) {
      // Reports come some steps late: it has to reach what was the newest when it was looked at.
      if (task.deal_step < 0) task.deal_step = job.lead().step();
      if (task.late == 0 && task.state.step() >= task.deal_step && !job.ReadsSlowly(task)) {
        task.dealt = fresh = true;
        task.dealt_at = ctx_.now();
      }
    }
    if (task.dealt && !task.on_trial) dealt[task.index] = task.cost;
  }
  if (job.LanesAreFixed()) return;  // lanes move in a hand-over (departures.h)
  if (fresh) {
    const std::vector<int32_t> before = job.lineages().Owners();
    const std::vector<int32_t> after = DealByCost(before, dealt);
    if (after != before) generations_.NewGeneration(job, after, "LanesMoved");
  }
  pace_.BeginTrial(job);
}

void LaneDealer::ReissueLate(Job& job) {
  if (job.LanesAreFixed()) return LoseTheHung(job);
  int64_t step = INT64_MAX;
  std::set<int32_t> lanes;
  const int32_t count = job.view().lane_owners_size();
  for (const Shard& shard : job.shards()) {
    if (!shard.present || !shard.state.has_waiting()) continue;
    const node::v1::Waiting& waiting = shard.state.waiting();
    if (waiting.step() > step || shard.state.lineage() != job.view().lineage()) continue;
    if (waiting.step() < step) lanes.clear();
    step = waiting.step();
    for (const int32_t lane : waiting.lanes()) {
      if (lane >= 0 && lane < count) lanes.insert(lane);
    }
    const int64_t blocks = job.resolved()->evaluation_blocks();
    for (const int32_t block : waiting.evaluation_blocks()) {
      if (block >= 0 && block < blocks) {
        lanes.insert(static_cast<int32_t>(int64_t{block} * count / blocks));
      }
    }
  }
  // The lanes of these that the lead has measured to be late.
  std::set<int32_t> told;
  if (!job.shards().empty() && job.shards()[0].present) {
    const node::v1::ShardState& lead = job.shards()[0].state;
    if (lead.generation() == job.view().generation() && lead.waiting().step() == step) {
      for (const int32_t lane : lead.waiting().late_lanes()) {
        if (lanes.count(lane) > 0) told.insert(lane);
      }
    }
  }
  if (job.lead().complete()) {
    // Nothing is summed any more; what may be late is lane 0's weights.safetensors.
    const absl::Duration awaited = job.late().EndAwaitedFor(ctx_.now());
    lanes.clear();
    told.clear();
    if (!job.written().has_weights() && awaited >= kLateEnd) {
      lanes.insert(0);
    }
    step = job.lead().step();
  }
  job.late().Await(step, lanes, ctx_.now());
  if (lanes.empty()) return;
  const absl::Duration limit = job.late().Limit(ctx_.options().late_lane);
  const std::vector<int32_t> before = job.lineages().Owners();
  std::set<int32_t> busy, slow;
  for (const int32_t lane : lanes) {
    Task& owner = job.tasks()[static_cast<size_t>(before[static_cast<size_t>(lane)])];
    busy.insert(owner.index);
    if (owner.lost) continue;  // its lanes are taken over anyhow
    const bool able = job.IsAble(owner);
    const int patience = able ? 1 : kStartPatience;  // it may still read its data
    if ((able && told.count(lane) > 0) || job.late().IsLate(lane, patience * limit, ctx_.now())) {
      slow.insert(owner.index);
    }
  }
  if (slow.empty()) return;
  // Tasks that are done. Of tasks without lanes only those that keep up.
  LaneCosts takers;
  for (const bool proven : {true, false}) {
    for (const Task& task : job.tasks()) {
      if (!job.IsAble(task) || !job.lineages().Lists(task) || busy.count(task.index) > 0) continue;
      if (proven == (CostTo(task) == kUnproven) || (!proven && task.state.step() < step)) continue;
      takers[task.index] = CostTo(task);
    }
    if (!takers.empty()) break;
  }
  if (takers.empty()) return;  // there are no others
  LaneCosts living = takers;
  for (const int32_t owner : before) {
    if (slow.count(owner) == 0) living.emplace(owner, kBusy);
  }
  const std::vector<int32_t> after = TakeOver(before, living);
  for (const int32_t lane : lanes) {
    const auto i = static_cast<size_t>(lane);
    if (after[i] != before[i]) job.late().CountReissue(lane);
  }
  for (const int32_t owner : after) {
    Task& task = job.tasks()[static_cast<size_t>(owner)];
    if (task.dealt) continue;
    task.dealt = true;
    task.dealt_at = ctx_.now();
  }
  for (const int32_t index : slow) pace_.TakeLanes(job.tasks()[static_cast<size_t>(index)]);
  job.paces().CountMove();
  generations_.NewGeneration(job, after, "LaneReissued");
}

void LaneDealer::LoseTheHung(Job& job) {
  if (job.recovery().wanted() || job.state() != common::v1::JOB_STATE_RUNNING) return;
  int64_t step = INT64_MAX;
  std::set<int32_t> lanes;  // evaluations may take long
  for (const Shard& shard : job.shards()) {
    if (!shard.present || !shard.state.has_waiting()) continue;
    const node::v1::Waiting& waiting = shard.state.waiting();
    if (waiting.step() > step || shard.state.lineage() != job.view().lineage()) continue;
    if (waiting.step() < step) lanes.clear();
    step = waiting.step();
    for (const int32_t lane : waiting.lanes()) {
      if (lane >= 0 && lane < job.view().lane_owners_size()) lanes.insert(lane);
    }
  }
  job.late().Await(step, lanes, ctx_.now());
  // The first step of a lineage may take long by itself: data are read, kernels are built.
  if (!job.late().KnowsAStep()) return;
  const absl::Duration limit =
      std::max(kHangs, kHungLimits * job.late().Limit(ctx_.options().late_lane));
  for (const int32_t lane : lanes) {
    Task& owner = job.tasks()[static_cast<size_t>(job.view().lane_owners(lane))];
    if (owner.lost || !job.late().IsLate(lane, limit, ctx_.now())) continue;
    if (owner.state.reads_residuals()) continue;  // it will compute once it has them
    const bool replaceable =
        std::any_of(job.tasks().begin(), job.tasks().end(), [&](const Task& other) {
          return other.index != owner.index && job.IsAble(other) && job.lineages().Lists(other);
        });
    if (!replaceable) continue;  // to go back would help nobody
    losses_.LoseTask(job, owner,
                     {.why = absl::StrCat("step ", step, " has waited for lane ", lane,
                                          " of it for ", absl::FormatDuration(limit))});
    return;  // the others may wait for it
  }
}

}  // namespace capstan::coordinator::core
