#include "coordinator/core/generations.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/lane_owners.h"
#include "services/check/check.h"
#include "services/check/mutant.h"

namespace capstan::coordinator::core {
namespace {

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

double CostTo(const Task& taker) { return taker.dealt && !taker.on_trial ? taker.cost : kUnproven; }

void Generations::NewGeneration(Job& job, const std::vector<int32_t>& owners,
                                const std::string& type) {
  // Its other lanes would be computed without their residuals.
  CAPSTAN_CHECK(!job.LanesAreFixed() || owners == job.lineages().Owners() ||
                CAPSTAN_MUTANT("reissued_without_residual"));
  const std::vector<int32_t> before = job.lineages().Owners();
  const std::string moves = MovesText(before, owners);
  std::map<int32_t, std::vector<int32_t>> left;  // lanes by their former owner
  for (size_t lane = 0; lane < owners.size(); ++lane) {
    if (before[lane] == owners[lane]) continue;
    job.late().Issue(static_cast<int32_t>(lane), ctx_.now());
    left[before[lane]].push_back(static_cast<int32_t>(lane));
  }
  job.lineages().BeginGeneration(owners, job.tasks());
  job.AddEvent(
      ctx_.wall(), type,
      absl::StrCat("generation ", job.view().generation(), moves.empty() ? "" : ": ", moves));
  NoteLanesWithout(job, left);
  if (job.KeepsResiduals() && !left.empty()) {
    // The last version is decided, and a former owner may be gone with residuals of one before it.
    // Nobody goes on from those.
    job.written().Settle(job.resolved()->total_steps() - 1);
  }
  ctx_.Changed(job);
}

void Generations::NoteLanesWithout(Job& job, const std::map<int32_t, std::vector<int32_t>>& left) {
  if (!job.DropsResiduals() || job.lead().complete()) return;
  if (job.lead().step() <= job.lineages().base_step()) return;  // there is nothing yet
  for (const auto& [owner, lanes] : left) {
    const double norm = job.tasks()[static_cast<size_t>(owner)].state.residual_norm();
    job.AddEvent(
        ctx_.wall(), "ResidualsLost",
        absl::StrCat("lanes ", NumbersText(lanes), " of w", owner, " begin without what ",
                     job.resolved()->spec().kvstore().gradient_compression().type(),
                     " had left out of their gradients; the norm of all that w", owner, " had was ",
                     norm > 0 ? absl::StrCat(norm) : std::string("not reported yet")));
  }
}

void Generations::TakeOverLanes(Job& job) {
  job.recovery().NoTakeover();
  if (job.LanesAreFixed() && !CAPSTAN_MUTANT("reissued_without_residual")) return;
  if (CAPSTAN_MUTANT("reissue_by_missing_seals") && !job.shards().empty() &&
      job.members().living() > 0) {
    const node::v1::Waiting& lead = job.shards()[0].state.waiting();
    if (lead.lanes().empty() && !lead.parts().empty()) {  // all seals are there, frames are not
      job.recovery().TakeOverAt(ctx_.now() + ctx_.options().resend);
      return;
    }
  }
  std::set<int32_t> able, listed;
  for (const Task& task : job.tasks()) {
    if (job.IsAble(task)) able.insert(task.index);
    if (!task.lost && task.probed) listed.insert(task.index);
  }
  const std::set<int32_t>& takers = able.empty() ? listed : able;
  if (takers.empty()) return;
  const std::vector<int32_t> before = job.lineages().Owners();
  LaneCosts living;
  const auto add = [&](int32_t task) {
    living[task] = CostTo(job.tasks()[static_cast<size_t>(task)]);
  };
  for (const int32_t owner : before) {
    if (listed.count(owner) > 0) add(owner);
  }
  for (const int32_t taker : takers) add(taker);
  const std::vector<int32_t> after = TakeOver(before, living);
  if (after == before) return;
  for (const int32_t owner : after) job.tasks()[static_cast<size_t>(owner)].dealt = true;
  NewGeneration(job, after, "ViewChanged");
}

void Generations::AdvanceTakeover(Job& job) {
  if (job.recovery().takeover_at() > ctx_.now()) return;
  job.recovery().NoTakeover();
  if (!job.recovery().wanted()) TakeOverLanes(job);  // else the new lineage deals its lanes
}

}  // namespace capstan::coordinator::core
