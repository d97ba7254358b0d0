// Who computes which lanes inside a lineage: takeover, joiners, lanes that are late.
//
// Every change is one new generation; as few lanes as possible change hands. What is dealt by the
// speed of workers is in core_pace.cc.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/core.h"
#include "coordinator/core/lane_owners.h"
#include "services/check/mutant.h"

namespace capstan::coordinator::core {
namespace {

constexpr size_t kStepTimes = 15;  // of which the median is taken
constexpr int kMaxDoublings = 10;
constexpr int kStartPatience = 5;
constexpr absl::Duration kLateEnd = absl::Seconds(10);
// Of a lane, where others can take it too: on a rank that has to show its speed, and on one that
// still has to do with its own.
constexpr double kUnproven = 1e6;
constexpr double kBusy = 1e9;

double CostTo(const Rank& taker) { return taker.dealt && !taker.on_trial ? taker.cost : kUnproven; }

std::string MovesText(const std::vector<int32_t>& before, const std::vector<int32_t>& after) {
  std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> moved;
  for (size_t lane = 0; lane < after.size(); ++lane) {
    if (before[lane] != after[lane]) {
      moved[{before[lane], after[lane]}].push_back(static_cast<int32_t>(lane));
    }
  }
  std::vector<std::string> texts;
  for (const auto& entry : moved) {
    texts.push_back(absl::StrCat("lanes ", NumbersText(entry.second), " go from w",
                                 entry.first.first, " to w", entry.first.second));
  }
  return absl::StrJoin(texts, ", ");
}

}  // namespace

void CoordinatorCore::NewGeneration(JobRecord& job, const std::vector<int32_t>& owners,
                                    const std::string& type) {
  const std::vector<int32_t> before = job.Owners();
  const std::string moves = MovesText(before, owners);
  for (size_t lane = 0; lane < owners.size(); ++lane) {
    if (before[lane] != owners[lane]) job.issued_at[static_cast<int32_t>(lane)] = now_;
  }
  common::v1::View view = job.view;
  view.set_generation(view.generation() + 1);
  view.clear_lane_owners();
  for (const int32_t owner : owners) view.add_lane_owners(owner);
  view.clear_workers();
  for (const Rank& rank : job.ranks) {
    if (rank.lost || !rank.probed) continue;
    common::v1::WorkerRef* worker = view.add_workers();
    worker->set_rank(rank.index);
    worker->set_node(rank.node);
  }
  job.view = std::move(view);
  job.AddEvent(
      wall_, type,
      absl::StrCat("generation ", job.view.generation(), moves.empty() ? "" : ": ", moves));
  Changed(job);
}

// Lanes of the lost go to those who have weights; where nobody has, to those who will.
void CoordinatorCore::TakeOverLanes(JobRecord& job) {
  job.takeover_at = absl::InfiniteDuration();
  if (CAPSTAN_MUTANT("reissue_by_missing_seals") && !job.shards.empty() && job.living() > 0) {
    const node::v1::Waiting& lead = job.shards[0].state.waiting();
    if (lead.lanes().empty() && !lead.parts().empty()) {  // all seals are there, frames are not
      job.takeover_at = now_ + options_.resend;
      return;
    }
  }
  std::set<int32_t> able, listed;
  for (const Rank& rank : job.ranks) {
    if (job.IsAble(rank)) able.insert(rank.index);
    if (!rank.lost && rank.probed) listed.insert(rank.index);
  }
  const std::set<int32_t>& takers = able.empty() ? listed : able;
  if (takers.empty()) return;
  const std::vector<int32_t> before = job.Owners();
  LaneCosts living;
  const auto add = [&](int32_t rank) {
    living[rank] = CostTo(job.ranks[static_cast<size_t>(rank)]);
  };
  for (const int32_t owner : before) {
    if (listed.count(owner) > 0) add(owner);
  }
  for (const int32_t taker : takers) add(taker);
  const std::vector<int32_t> after = TakeOver(before, living);
  if (after == before) return;
  for (const int32_t owner : after) job.ranks[static_cast<size_t>(owner)].dealt = true;
  NewGeneration(job, after, "ViewChanged");
}

// Free nodes for a running job that has fewer workers than it may have.
void CoordinatorCore::FillRanks(JobRecord& job) {
  if (job.resting() || job.cancel_asked || !job.in_history() || job.shards.empty() || job.recover)
    return;
  const int living = job.living();
  if (living > 0 && (job.lead.complete() || job.SuspendOrdered())) return;
  if (job.lead.suspended() || job.EndIsReported()) return;
  const int want =
      std::min(job.resolved->num_workers(), job.resolved->lanes()) - job.living_workers();
  if (want <= 0) return;
  GangRequest request = RequestOf(job.resolved->spec());
  request.num_workers = want;
  request.one_per_node = options_.expected_nodes > 0;
  request.device = job.on_gpus ? "gpu" : "cpu";
  request.version = VersionOf(job, nodes_);
  for (const Rank& rank : job.ranks) {
    if (!rank.gone) request.exclude.insert(rank.node);
  }
  ExcludeStrays(job, request);
  for (const auto& entry : job.rejoin) {
    if (entry.second.not_before > now_) request.exclude.insert(entry.first);
  }
  for (const Gang::Worker& worker : FreeWorkers(nodes_, request)) {
    Node& node = *nodes_.Find(worker.node);
    Rank rank;
    rank.index = static_cast<int32_t>(job.ranks.size());
    rank.node = node.name();
    rank.host = node.host();
    rank.incarnation = node.incarnation;
    rank.devices = worker.devices;
    rank.dealt = false;
    rank.deal_at = now_;
    for (const int device : worker.devices) node.slots[static_cast<size_t>(device)] = job.id;
    node.jobs.insert(job.id);
    job.AddEvent(wall_, "WorkerJoins", NameOf(rank));
    job.ranks.push_back(std::move(rank));
    Changed(job);
    active_[job.sequence] = &job;
  }
  job.ForgetLostRanks();
  SendProbes(job);
}

// Joiners whose data are right enter the view; those that have weights get their share.
void CoordinatorCore::AdvanceJoiners(JobRecord& job) {
  bool enters = false;
  for (Rank& rank : job.ranks) {
    if (rank.lost || !rank.probed || job.InView(rank)) continue;
    if (!rank.probe.reason().empty() || !SameData(rank.probe.dataset(), job.resolved->dataset())) {
      // It is no worker for this job; the job itself has those that it has.
      rank.lost = true;
      rank.why =
          rank.probe.reason().empty() ? "its data are not those of the job" : rank.probe.message();
      JobRecord::Rejoin& rejoin = job.rejoin[rank.node];
      rejoin.failures += 8;
      rejoin.not_before = now_ + options_.rejoin_delay * 256;
      job.AddEvent(wall_, "JoinRefused", absl::StrCat(NameOf(rank), ": ", rank.why));
      Changed(job);
      continue;
    }
    enters = true;
  }
  if (enters) {
    const auto& owners = job.view.lane_owners();
    const bool orphaned = std::all_of(owners.begin(), owners.end(), [&job](int32_t owner) {
      return job.ranks[static_cast<size_t>(owner)].lost;
    });
    if (orphaned) {
      TakeOverLanes(job);
    } else {
      NewGeneration(job, job.Owners(), "ViewChanged");
    }
  }
  if (job.lead.complete()) return;
  bool fresh = false;
  LaneCosts dealt;
  for (Rank& rank : job.ranks) {
    if (!job.IsAble(rank) || !job.InView(rank)) continue;
    if (!rank.dealt && now_ >= rank.deal_at) {
      // Reports come some steps late: it has to reach what was the newest when it was looked at.
      if (rank.deal_step < 0) rank.deal_step = job.lead.step();
      if (rank.late == 0 && rank.state.step() >= rank.deal_step) {
        rank.dealt = fresh = true;
        rank.dealt_at = now_;
      }
    }
    if (rank.dealt && !rank.on_trial) dealt[rank.index] = rank.cost;
  }
  if (fresh) {
    const std::vector<int32_t> before = job.Owners();
    const std::vector<int32_t> after = DealByCost(before, dealt);
    if (after != before) NewGeneration(job, after, "LanesMoved");
  }
  BeginTrial(job);
}

void CoordinatorCore::NoteStepTime(JobRecord& job, double samples_per_second) {
  if (!(samples_per_second > 0)) return;  // nor NaN
  job.step_seconds.push_back(static_cast<double>(job.resolved->global_batch()) /
                             samples_per_second);
  if (job.step_seconds.size() > kStepTimes) job.step_seconds.erase(job.step_seconds.begin());
}

// What the oldest step still lacks when the others have long been there goes to somebody who is done,
// with all other lanes of the one that is late: it would be late with those next. Who computes a
// lane does not change its bits, and the first copy counts.
void CoordinatorCore::ReissueLate(JobRecord& job) {
  int64_t step = INT64_MAX;
  std::set<int32_t> lanes;
  const int32_t count = job.view.lane_owners_size();
  for (const Shard& shard : job.shards) {
    if (!shard.present || !shard.state.has_waiting()) continue;
    const node::v1::Waiting& waiting = shard.state.waiting();
    if (waiting.step() > step || shard.state.lineage() != job.view.lineage()) continue;
    if (waiting.step() < step) lanes.clear();
    step = waiting.step();
    for (const int32_t lane : waiting.lanes()) {
      if (lane >= 0 && lane < count) lanes.insert(lane);
    }
    const int64_t blocks = job.resolved->evaluation_blocks();
    for (const int32_t block : waiting.evaluation_blocks()) {
      if (block >= 0 && block < blocks) {
        lanes.insert(static_cast<int32_t>(int64_t{block} * count / blocks));
      }
    }
  }
  // Of these, what the lead has measured to be late.
  std::set<int32_t> told;
  if (!job.shards.empty() && job.shards[0].present) {
    const node::v1::ShardState& lead = job.shards[0].state;
    if (lead.generation() == job.view.generation() && lead.waiting().step() == step) {
      for (const int32_t lane : lead.waiting().late_lanes()) {
        if (lanes.count(lane) > 0) told.insert(lane);
      }
    }
  }
  if (job.lead.complete()) {
    // Nothing is summed any more; what may be late is lane 0's weights.safetensors.
    job.complete_since = std::min(job.complete_since, now_);
    lanes.clear();
    told.clear();
    if (job.weights_files.files_size() == 0 && now_ - job.complete_since >= kLateEnd) {
      lanes.insert(0);
    }
    step = job.lead.step();
  }
  if (step != job.late_step) {  // it gets on: what was late before is forgotten
    job.issued_at.clear();
    job.reissues.clear();
  }
  if (step != job.late_step || lanes != job.late_lanes) {
    job.late_step = step;
    job.late_lanes = lanes;
    job.late_since = now_;
  }
  if (lanes.empty()) return;
  std::vector<double> times = job.step_seconds;
  absl::Duration limit = options_.late_lane;
  if (!times.empty()) {
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    limit = std::max(limit, 3 * absl::Seconds(times[times.size() / 2]));
  }
  const std::vector<int32_t> before = job.Owners();
  std::set<int32_t> busy, slow;
  for (const int32_t lane : lanes) {
    Rank& owner = job.ranks[static_cast<size_t>(before[static_cast<size_t>(lane)])];
    busy.insert(owner.index);
    if (owner.lost) continue;  // its lanes are taken over anyhow
    const bool able = job.IsAble(owner);
    const int patience = able ? 1 : kStartPatience;  // it may still read its data
    const int doublings = std::min(job.reissues[lane], kMaxDoublings);
    absl::Duration since = job.late_since;
    if (const auto it = job.issued_at.find(lane); it != job.issued_at.end()) {
      since = std::max(since, it->second);
    }
    const bool late =
        (able && told.count(lane) > 0) || now_ - since >= patience * limit * (1 << doublings);
    if (late) slow.insert(owner.index);
  }
  if (slow.empty()) return;
  // Those who are done; of those without lanes only whoever keeps up.
  LaneCosts takers;
  for (const bool proven : {true, false}) {
    for (const Rank& rank : job.ranks) {
      if (!job.IsAble(rank) || !job.InView(rank) || busy.count(rank.index) > 0) continue;
      if (proven == (CostTo(rank) == kUnproven) || (!proven && rank.state.step() < step)) continue;
      takers[rank.index] = CostTo(rank);
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
    if (after[static_cast<size_t>(lane)] != before[static_cast<size_t>(lane)]) ++job.reissues[lane];
  }
  for (const int32_t owner : after) {
    Rank& rank = job.ranks[static_cast<size_t>(owner)];
    if (rank.dealt) continue;
    rank.dealt = true;
    rank.dealt_at = now_;
  }
  for (const int32_t index : slow) TakeLanes(job.ranks[static_cast<size_t>(index)]);
  ++job.reissue_generations;
  NewGeneration(job, after, "LaneReissued");
}

}  // namespace capstan::coordinator::core
