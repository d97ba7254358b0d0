#include "coordinator/core/pace_dealer.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "coordinator/core/lane_owners.h"

namespace capstan::coordinator::core {
namespace {

constexpr int64_t kStepsToWeigh = 3;
constexpr int64_t kMostCounted = int64_t{1} << 53;  // steps or lanes of a lineage
constexpr double kMostSeconds = 1e12;
constexpr double kLeastSeconds = 1e-12;  // of three steps
// A worker's time of a step, against the others: what begins to move lanes, and what moves them
// where that has begun.
constexpr double kUnevenTimes = 2;
constexpr double kUnevenAgain = 1.25;
constexpr double kWorthMoving = 1.25;  // the step's time before, against that after
constexpr double kUsualCost = 1.5;     // up to here and down to 1 / this: 1
constexpr double kMostCost = 1000;
constexpr int kMaxWaitDoublings = 7;
constexpr int kForgivenAfter = 5;  // times options.give_back

// `values` is not empty. Of two middle ones it is the lower.
double LowerMedian(std::vector<double> values) {
  const size_t middle = (values.size() - 1) / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle),
                   values.end());
  return values[middle];
}

struct Pace {
  int32_t rank = 0;
  double step_seconds = 0;
  double lane_seconds = 0;
};

// Numbers of a lead that cannot be true are ignored. So differences of the others do not overflow.
bool CanBe(const node::v1::WorkerPace& pace) {
  return pace.steps() >= 0 && pace.steps() <= kMostCounted && pace.lanes() >= 0 &&
         pace.lanes() <= kMostCounted && pace.seconds() >= 0 && pace.seconds() <= kMostSeconds;
}

// Of a task, since the lineage began; nothing where the lead has not seen a step of it.
node::v1::WorkerPace ToldOf(const node::v1::ShardState& lead, int32_t rank) {
  for (const node::v1::WorkerPace& pace : lead.paces()) {
    if (pace.rank() == rank && CanBe(pace)) return pace;
  }
  return {};
}

// One takes so many times as long as the median of the others.
bool Uneven(const std::vector<Pace>& paces, double times) {
  for (const Pace& pace : paces) {
    std::vector<double> others;
    for (const Pace& other : paces) {
      if (other.rank != pace.rank) others.push_back(other.step_seconds);
    }
    if (pace.step_seconds >= times * LowerMedian(std::move(others))) return true;
  }
  return false;
}

LaneCosts CostsOf(const std::vector<Pace>& paces) {
  std::vector<double> seconds;
  for (const Pace& pace : paces) seconds.push_back(pace.lane_seconds);
  const double usual = LowerMedian(std::move(seconds));
  LaneCosts costs;
  for (const Pace& pace : paces) {
    const double cost = std::clamp(pace.lane_seconds / usual, 1 / kMostCost, kMostCost);
    costs[pace.rank] = cost <= kUsualCost && cost >= 1 / kUsualCost ? 1 : cost;
  }
  return costs;
}

}  // namespace

void PaceDealer::WeighPaces(Job& job) {
  if (job.shards().empty() || job.lead().complete() || !job.shards()[0].present) return;
  if (job.LanesAreFixed()) return;
  const node::v1::ShardState& lead = job.shards()[0].state;
  if (lead.lineage() != job.view().lineage()) return;
  if (lead.paces().empty()) {
    EndUnmeasuredTrial(job);
    return;
  }
  if (lead.generation() != job.view().generation()) return;
  const bool begins = job.paces().IsNew(job.view().generation());
  if (!begins && !job.paces().Due(ctx_.now(), ctx_.options().weigh_paces)) return;

  const std::vector<int32_t> before = job.lineages().Owners();
  std::vector<Pace> paces;
  for (const int32_t owner : std::set<int32_t>(before.begin(), before.end())) {
    const auto told = std::find_if(lead.paces().begin(), lead.paces().end(),
                                   [owner](const auto& pace) { return pace.rank() == owner; });
    const Task& task = job.tasks()[static_cast<size_t>(owner)];
    if (begins || told == lead.paces().end() || !job.IsAble(task)) continue;
    if (!CanBe(*told)) continue;
    const int64_t steps = told->steps() - task.weighed.steps();
    const int64_t lanes = told->lanes() - task.weighed.lanes();
    const double seconds = told->seconds() - task.weighed.seconds();
    if (steps < kStepsToWeigh) return;  // not yet enough of everybody
    if (lanes < 1 || seconds < kLeastSeconds) continue;
    paces.push_back(
        {owner, seconds / static_cast<double>(steps), seconds / static_cast<double>(lanes)});
  }
  const std::set<int32_t> owners(before.begin(), before.end());
  if (!begins && paces.size() < owners.size()) return;  // a task has not done a step yet
  for (Task& task : job.tasks()) task.weighed = ToldOf(lead, task.index);
  job.paces().NoteWeighed(job.view().generation(), ctx_.now());
  if (paces.size() < 2) return;

  const LaneCosts costs = CostsOf(paces);
  const std::vector<int32_t> after = DealByCost(before, costs);
  const std::set<int32_t> keep(after.begin(), after.end());
  bool tried = false, moved = false;
  for (const Pace& pace : paces) {
    Task& task = job.tasks()[static_cast<size_t>(pace.rank)];
    tried = tried || task.on_trial;
    moved = moved || task.cost != 1;
    if (task.on_trial && keep.count(pace.rank) > 0) {
      task.on_trial = false;
      task.dealt_at = ctx_.now();
    }
  }
  const bool worth = Uneven(paces, moved ? kUnevenAgain : kUnevenTimes) &&
                     Makespan(before, costs) >= kWorthMoving * Makespan(after, costs);
  if (!job.paces().Moves(worth, tried, ctx_.now())) return;
  for (const Pace& pace : paces) {
    Task& task = job.tasks()[static_cast<size_t>(pace.rank)];
    task.cost = costs.at(pace.rank);
    if (keep.count(pace.rank) == 0) TakeLanes(task);
  }
  job.paces().NoteMoved();
  if (after == before) return;
  job.paces().CountMove();
  generations_.NewGeneration(job, after, "LanesMoved");
}

void PaceDealer::TakeLanes(Task& task) {
  task.dealt = task.on_trial = false;
  task.deal_at =
      ctx_.now() + ctx_.options().give_back * (1 << std::min(task.late, kMaxWaitDoublings));
  task.deal_step = -1;
  ++task.late;
}

void PaceDealer::BeginTrial(Job& job) {
  Task* candidate = nullptr;
  for (Task& task : job.tasks()) {
    if (task.lost) continue;
    if (task.on_trial) return;
    if (task.dealt) {
      const absl::Duration last =
          ctx_.options().give_back * (1 << std::min(task.late, kMaxWaitDoublings));
      const absl::Duration enough = std::max(kForgivenAfter * ctx_.options().give_back, last / 2);
      if (task.late > 0 && ctx_.now() - task.dealt_at >= enough) task.late = 0;
      continue;
    }
    const bool keeps_up = task.deal_step >= 0 && task.state.step() >= task.deal_step;
    if (candidate == nullptr && task.late > 0 && keeps_up && ctx_.now() >= task.deal_at &&
        job.IsAble(task) && job.lineages().Lists(task) && !job.ReadsSlowly(task)) {
      candidate = &task;
    }
  }
  if (candidate == nullptr) return;
  std::vector<int32_t> owners = job.lineages().Owners();
  std::map<int32_t, double> done;
  std::map<int32_t, std::vector<size_t>> held;
  for (size_t lane = 0; lane < owners.size(); ++lane) {
    const Task& owner = job.tasks()[static_cast<size_t>(owners[lane])];
    done[owner.index] += owner.cost;
    held[owner.index].push_back(lane);
  }
  const std::vector<size_t>* most = nullptr;
  double last = 0;
  for (const auto& [task, lanes] : held) {
    if (lanes.size() < 2 || done[task] <= last) continue;
    most = &lanes;
    last = done[task];
  }
  if (most == nullptr) return;  // there are fewer lanes than workers
  owners[most->back()] = candidate->index;
  candidate->dealt = candidate->on_trial = true;
  candidate->dealt_at = ctx_.now();
  candidate->trial_step = job.lead().step();
  job.paces().CountMove();
  generations_.NewGeneration(job, owners, "LanesMoved");
}

void PaceDealer::EndUnmeasuredTrial(Job& job) {
  LaneCosts dealt;
  bool ends = false;
  for (Task& task : job.tasks()) {
    if (!job.IsAble(task) || !job.lineages().Lists(task) || !task.dealt) continue;
    if (task.on_trial && job.lead().step() >= task.trial_step + kStepsToWeigh &&
        ctx_.now() - task.dealt_at >= kUnevenInARow * ctx_.options().weigh_paces) {
      task.on_trial = false;
      ends = true;
    }
    if (!task.on_trial) dealt[task.index] = task.cost;
  }
  if (!ends) return;
  const std::vector<int32_t> after = DealByCost(job.lineages().Owners(), dealt);
  job.paces().CountMove();
  generations_.NewGeneration(job, after, "LanesMoved");
}

}  // namespace capstan::coordinator::core
