// Lanes by the speed of workers: the lead tells how long each needs for its lanes of a step.
//
// Every worker has as many lanes as make the last one done soonest, where that differs enough, and
// for long enough, to be worth a generation. One whose lanes were taken, for it was late or too slow
// for any, shows its speed with one lane, again and again after twice the time; whoever keeps up
// then is as good as any other.
#include <algorithm>
#include <cmath>

#include "coordinator/core/core.h"
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
constexpr int kUnevenInARow = 2;
constexpr int kMaxWaitDoublings = 7;
constexpr int kForgivenAfter = 5;  // times options.give_back
constexpr int kMaxRedeals = 30;
constexpr absl::Duration kRedealsForgiven = absl::Minutes(5);

// Of two the lower one. Not empty.
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

// What a lead says is not believed where it cannot be: differences of these numbers do not overflow.
bool CanBe(const node::v1::WorkerPace& pace) {
  return pace.steps() >= 0 && pace.steps() <= kMostCounted && pace.lanes() >= 0 &&
         pace.lanes() <= kMostCounted && pace.seconds() >= 0 && pace.seconds() <= kMostSeconds;
}

// Of a rank, since the lineage began; nothing where the lead has not seen a step of it.
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

bool ReadsSlowly(const JobRecord& job, const Rank& rank) {
  const auto& readers = job.lead.slow_readers();
  return std::any_of(readers.begin(), readers.end(),
                     [&rank](const auto& reader) { return reader.rank() == rank.index; });
}

}  // namespace

// It gets a lane again after a while, to show its speed.
void CoordinatorCore::TakeLanes(Rank& rank) {
  rank.dealt = rank.on_trial = false;
  rank.deal_at = now_ + options_.give_back * (1 << std::min(rank.late, kMaxWaitDoublings));
  rank.deal_step = -1;
  ++rank.late;
}

// One at a time gets a lane of the rank that has most to do. Not one that needs longer than a step to
// take the weights: every step would wait for it.
void CoordinatorCore::BeginTrial(JobRecord& job) {
  Rank* candidate = nullptr;
  for (Rank& rank : job.ranks) {
    if (rank.lost) continue;
    if (rank.on_trial) return;
    if (rank.dealt) {
      const absl::Duration last =
          options_.give_back * (1 << std::min(rank.late, kMaxWaitDoublings));
      const absl::Duration enough = std::max(kForgivenAfter * options_.give_back, last / 2);
      if (rank.late > 0 && now_ - rank.dealt_at >= enough) rank.late = 0;
      continue;
    }
    const bool keeps_up = rank.deal_step >= 0 && rank.state.step() >= rank.deal_step;
    if (candidate == nullptr && rank.late > 0 && keeps_up && now_ >= rank.deal_at &&
        job.IsAble(rank) && job.InView(rank) && !ReadsSlowly(job, rank)) {
      candidate = &rank;
    }
  }
  if (candidate == nullptr) return;
  std::vector<int32_t> owners = job.Owners();
  std::map<int32_t, double> done;
  std::map<int32_t, std::vector<size_t>> held;
  for (size_t lane = 0; lane < owners.size(); ++lane) {
    const Rank& owner = job.ranks[static_cast<size_t>(owners[lane])];
    done[owner.index] += owner.cost;
    held[owner.index].push_back(lane);
  }
  const std::vector<size_t>* most = nullptr;
  double last = 0;
  for (const auto& [rank, lanes] : held) {
    if (lanes.size() < 2 || done[rank] <= last) continue;
    most = &lanes;
    last = done[rank];
  }
  if (most == nullptr) return;  // there are fewer lanes than workers
  owners[most->back()] = candidate->index;
  candidate->dealt = candidate->on_trial = true;
  candidate->dealt_at = now_;
  candidate->trial_step = job.lead.step();
  ++job.reissue_generations;
  NewGeneration(job, owners, "LanesMoved");
}

// Of a shard that does not measure: who was not late with its lane has shown enough.
void CoordinatorCore::EndUnmeasuredTrial(JobRecord& job) {
  LaneCosts dealt;
  bool ends = false;
  for (Rank& rank : job.ranks) {
    if (!job.IsAble(rank) || !job.InView(rank) || !rank.dealt) continue;
    if (rank.on_trial && job.lead.step() >= rank.trial_step + kStepsToWeigh &&
        now_ - rank.dealt_at >= kUnevenInARow * options_.weigh_paces) {
      rank.on_trial = false;
      ends = true;
    }
    if (!rank.on_trial) dealt[rank.index] = rank.cost;
  }
  if (!ends) return;
  const std::vector<int32_t> after = DealByCost(job.Owners(), dealt);
  ++job.reissue_generations;
  NewGeneration(job, after, "LanesMoved");
}

void CoordinatorCore::WeighPaces(JobRecord& job) {
  if (job.shards.empty() || job.lead.complete() || !job.shards[0].present) return;
  const node::v1::ShardState& lead = job.shards[0].state;
  if (lead.lineage() != job.view.lineage()) return;
  if (lead.paces().empty()) {
    EndUnmeasuredTrial(job);
    return;
  }
  if (lead.generation() != job.view.generation()) return;
  const bool begins = job.weighed_generation != job.view.generation();
  if (!begins && now_ - job.weighed_at < options_.weigh_paces) return;

  const std::vector<int32_t> before = job.Owners();
  std::vector<Pace> paces;
  for (const int32_t owner : std::set<int32_t>(before.begin(), before.end())) {
    const auto told = std::find_if(lead.paces().begin(), lead.paces().end(),
                                   [owner](const auto& pace) { return pace.rank() == owner; });
    const Rank& rank = job.ranks[static_cast<size_t>(owner)];
    if (begins || told == lead.paces().end() || !job.IsAble(rank)) continue;
    if (!CanBe(*told)) continue;
    const int64_t steps = told->steps() - rank.weighed.steps();
    const int64_t lanes = told->lanes() - rank.weighed.lanes();
    const double seconds = told->seconds() - rank.weighed.seconds();
    if (steps < kStepsToWeigh) return;  // not yet enough of everybody
    if (lanes < 1 || seconds < kLeastSeconds) continue;
    paces.push_back(
        {owner, seconds / static_cast<double>(steps), seconds / static_cast<double>(lanes)});
  }
  const std::set<int32_t> owners(before.begin(), before.end());
  if (!begins && paces.size() < owners.size()) return;  // somebody has not done a step yet
  for (Rank& rank : job.ranks) rank.weighed = ToldOf(lead, rank.index);
  if (begins) job.uneven = 0;
  job.weighed_generation = job.view.generation();
  job.weighed_at = now_;
  if (paces.size() < 2) return;

  const LaneCosts costs = CostsOf(paces);
  const std::vector<int32_t> after = DealByCost(before, costs);
  const std::set<int32_t> keep(after.begin(), after.end());
  bool tried = false, moved = false;
  for (const Pace& pace : paces) {
    Rank& rank = job.ranks[static_cast<size_t>(pace.rank)];
    tried = tried || rank.on_trial;
    moved = moved || rank.cost != 1;
    if (rank.on_trial && keep.count(pace.rank) > 0) {
      rank.on_trial = false;
      rank.dealt_at = now_;
    }
  }
  const bool worth = Uneven(paces, moved ? kUnevenAgain : kUnevenTimes) &&
                     Makespan(before, costs) >= kWorthMoving * Makespan(after, costs);
  job.uneven = worth ? job.uneven + 1 : 0;
  if (now_ - job.redealt_at >= kRedealsForgiven) job.redeals = 0;
  if (!tried && job.uneven < kUnevenInARow + std::min(job.redeals, kMaxRedeals)) return;
  if (!tried) {
    ++job.redeals;
    job.redealt_at = now_;
  }
  for (const Pace& pace : paces) {
    Rank& rank = job.ranks[static_cast<size_t>(pace.rank)];
    rank.cost = costs.at(pace.rank);
    if (keep.count(pace.rank) == 0) TakeLanes(rank);
  }
  job.uneven = 0;
  if (after == before) return;
  ++job.reissue_generations;
  NewGeneration(job, after, "LanesMoved");
}

}  // namespace capstan::coordinator::core
