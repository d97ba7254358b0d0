// Who computes which lanes inside a lineage: takeover, joiners, lanes that are late.
//
// Every change is one new generation; as few lanes as possible change hands.
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

std::vector<int32_t> OwnersOf(const JobRecord& job) {
  return {job.view.lane_owners().begin(), job.view.lane_owners().end()};
}

bool InView(const JobRecord& job, const Rank& rank) {
  return std::any_of(
      job.view.workers().begin(), job.view.workers().end(),
      [&rank](const common::v1::WorkerRef& worker) { return worker.rank() == rank.index; });
}

// Has weights of the lineage: computes what it is given at once.
bool Able(const JobRecord& job, const Rank& rank) {
  return !rank.lost && rank.present && rank.state.phase() == node::v1::TASK_PHASE_RUNNING &&
         rank.state.lineage() == job.view.lineage();
}

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
  const std::string moves = MovesText(OwnersOf(job), owners);
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
  job.late_since = now_;
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
    if (Able(job, rank)) able.insert(rank.index);
    if (!rank.lost && rank.probed) listed.insert(rank.index);
  }
  const std::set<int32_t>& takers = able.empty() ? listed : able;
  if (takers.empty()) return;
  const std::vector<int32_t> before = OwnersOf(job);
  std::set<int32_t> living;
  for (const int32_t owner : before) {
    if (listed.count(owner) > 0) living.insert(owner);
  }
  living.insert(takers.begin(), takers.end());
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
  const int want = std::min(job.resolved->num_workers(), job.resolved->lanes()) - living;
  if (want <= 0) return;
  GangRequest request = RequestOf(job.resolved->spec());
  request.num_workers = want;
  request.device = job.on_gpus ? "gpu" : "cpu";
  request.exclude.clear();
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
  SendProbes(job);
}

// Joiners whose data are right enter the view; those that have weights get their share.
void CoordinatorCore::AdvanceJoiners(JobRecord& job) {
  bool enters = false;
  for (Rank& rank : job.ranks) {
    if (rank.lost || !rank.probed || InView(job, rank)) continue;
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
      NewGeneration(job, OwnersOf(job), "ViewChanged");
    }
  }
  if (job.lead.complete()) return;
  bool fresh = false;
  std::set<int32_t> able;
  for (Rank& rank : job.ranks) {
    if (!Able(job, rank) || !InView(job, rank)) continue;
    able.insert(rank.index);
    // One that was late has to show that it keeps up again.
    if (!rank.dealt && now_ >= rank.deal_at && rank.state.step() + 1 >= job.lead.step()) {
      rank.dealt = fresh = true;
    }
  }
  if (!fresh) return;
  for (const Rank& rank : job.ranks) {
    if (!rank.dealt) able.erase(rank.index);
  }
  const std::vector<int32_t> before = OwnersOf(job);
  const std::vector<int32_t> after = Rebalance(before, able);
  if (after != before) NewGeneration(job, after, "LanesMoved");
}

void CoordinatorCore::NoteStepTime(JobRecord& job, double samples_per_second) {
  if (!(samples_per_second > 0)) return;  // nor NaN
  job.step_seconds.push_back(static_cast<double>(job.resolved->global_batch()) /
                             samples_per_second);
  if (job.step_seconds.size() > kStepTimes) job.step_seconds.erase(job.step_seconds.begin());
}

// Lanes that the oldest step still lacks when the others have long been there go to somebody who is
// done. Who computes a lane does not change its bits, and the first copy counts.
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
  if (job.lead.complete()) {
    // Nothing is summed any more; what may be late is lane 0's weights.safetensors.
    job.complete_since = std::min(job.complete_since, now_);
    lanes.clear();
    if (job.weights_files.files_size() == 0 && now_ - job.complete_since >= kLateEnd) {
      lanes.insert(0);
    }
    step = job.lead.step();
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
  const std::vector<int32_t> before = OwnersOf(job);
  std::map<int32_t, int> load;  // of those who are done
  for (const Rank& rank : job.ranks) {
    if (Able(job, rank) && InView(job, rank)) load[rank.index] = 0;
  }
  for (int32_t lane = 0; lane < count; ++lane) {
    if (lanes.count(lane) > 0) {
      load.erase(before[static_cast<size_t>(lane)]);
    } else if (load.count(before[static_cast<size_t>(lane)]) > 0) {
      ++load[before[static_cast<size_t>(lane)]];
    }
  }
  if (load.empty()) return;  // there are no others
  std::vector<int32_t> after = before;
  std::set<int32_t> slow;
  for (const int32_t lane : lanes) {
    Rank& owner = job.ranks[static_cast<size_t>(before[static_cast<size_t>(lane)])];
    const int doublings = std::min(job.reissues[lane], kMaxDoublings);
    // A lost owner's lanes are taken over anyhow.
    const int patience = Able(job, owner) ? 1 : kStartPatience;  // it may still read its data
    if (owner.lost || now_ - job.late_since < patience * limit * (1 << doublings)) continue;
    auto taker = load.begin();
    for (auto it = load.begin(); it != load.end(); ++it) {
      if (it->second < taker->second) taker = it;
    }
    ++taker->second;
    ++job.reissues[lane];
    after[static_cast<size_t>(lane)] = taker->first;
    slow.insert(owner.index);
  }
  if (slow.empty()) return;
  for (const int32_t index : slow) {
    Rank& rank = job.ranks[static_cast<size_t>(index)];
    const bool any = std::find(after.begin(), after.end(), index) != after.end();
    rank.deal_at = now_ + options_.give_back * (1 << std::min(rank.late, kMaxDoublings));
    ++rank.late;
    rank.dealt = any;
  }
  ++job.reissue_generations;
  NewGeneration(job, after, "LaneReissued");
}

}  // namespace capstan::coordinator::core
