// Shards that leave on purpose: their service was told to stop, or their node is drained and another
// one is free.
//
// The lead is ordered to make the next version the last of its lineage, as for a suspend. Once that
// is committed, the next lineage begins from it without those who leave. So no step is done twice,
// and nothing counts as a restart. Where the version cannot be saved, since nobody computes or the
// time is over, the steps since the last manifest are lost; that is no restart either.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/core.h"

namespace capstan::coordinator::core {
namespace {

// A step needs all shards: while one has not loaded the base of the lineage, none was decided.
bool HasNotBegun(const JobRecord& job) {
  return std::any_of(job.shards.begin(), job.shards.end(), [&job](const Shard& shard) {
    return !shard.lost && shard.present &&
           (shard.state.lineage() < job.view.lineage() || !shard.state.ready());
  });
}

}  // namespace

// Those whose service stops, in any case. Those of drained nodes where everybody who goes has
// somewhere to go: else they stay, until their service stops.
std::set<int32_t> CoordinatorCore::LeavingShards(const JobRecord& job) {
  std::set<int32_t> leaving, drained;
  for (const Shard& shard : job.shards) {
    const Node* const node = nodes_.FindIncarnation(shard.node, shard.incarnation);
    if (shard.lost || node == nullptr || node->lost) continue;
    if (node->leaving) {
      leaving.insert(shard.index);
    } else if (node->drained) {
      drained.insert(shard.index);
    }
  }
  for (const int32_t index : drained) {
    std::set<int32_t> with = leaving;
    with.insert(index);
    std::map<int32_t, Node*> homes;
    if (FindHomes(job, with, &homes)) leaving = std::move(with);
  }
  return leaving;
}

void CoordinatorCore::AdvanceLeaving(JobRecord& job) {
  if (job.shards.empty() || job.EndIsReported()) return;
  const std::set<int32_t> leaving = LeavingShards(job);
  if (leaving.empty()) return;
  if (job.recover) {
    // The next lineage begins from the last manifest anyhow. A shard that only lost its lease has
    // its back-off to come back in.
    if (now_ >= job.recover_at) LetGo(job, leaving);
    return;
  }
  if (job.lead.complete()) return;  // it ends with those who are there
  const bool must = std::any_of(leaving.begin(), leaving.end(), [&](int32_t index) {
    return nodes_.Find(job.shards[static_cast<size_t>(index)].node)->leaving;
  });
  if (HasNotBegun(job)) return LetGo(job, leaving);
  if (job.lead.suspended() || job.HandOverOrdered()) {
    job.hand_over_since = std::min(job.hand_over_since, now_);
    if (!must && now_ - job.hand_over_since >= options_.hand_over_limit) LetGo(job, leaving);
    // Nobody computes the step that the order waits for.
    if (must && job.living() == 0 && !job.lead.suspended()) LetGo(job, leaving);
    return;
  }
  if (job.living() == 0) {
    if (must) LetGo(job, leaving);
    return;
  }
  // Where nothing can be written a drain would only stop the job.
  if (!must && job.conditions.count(kCheckpointDegraded) > 0) return;
  std::vector<std::string> who;
  for (const int32_t index : leaving) {
    who.push_back(NameOf(job.shards[static_cast<size_t>(index)]));
  }
  job.AddEvent(
      wall_, "ShardLeaves",
      absl::StrCat(absl::StrJoin(who, ", "), must ? ": its service stops" : ": its node is drained",
                   "; the next version is saved first"));
  node::v1::Order order;  // beyond any limit, as a suspend
  order.set_suspend(true);
  AddOrder(job, std::move(order), /*hand_over=*/true);
  job.hand_over_since = now_;
}

void CoordinatorCore::LetGo(JobRecord& job, const std::set<int32_t>& leaving) {
  for (const int32_t index : leaving) {
    Shard& shard = job.shards[static_cast<size_t>(index)];
    const bool stops = nodes_.Find(shard.node)->leaving;
    LoseShard(job, shard,
              {.why = stops ? "its service stops" : "its node is drained",
               .goodbye = stops,
               .drained = !stops});
  }
}

// The version that a hand-over ordered is committed.
void CoordinatorCore::GoOnWithout(JobRecord& job) {
  if (job.recover) return;
  LetGo(job, LeavingShards(job));
  // Who was to leave stays after all: the lineage has ended nevertheless.
  if (!job.recover) RecoverFreely(job, kShardLeft, "nobody leaves any more");
}

// They go as soon as they hold nothing; others who are lost may be found again.
void CoordinatorCore::EndThoseWhoLeft(JobRecord& job) {
  for (Shard& shard : job.shards) {
    const Node* const node = nodes_.FindIncarnation(shard.node, shard.incarnation);
    if (!shard.lost || !shard.present || node == nullptr || !node->usable() || !node->leaving ||
        !Due(shard.end_sent, options_.resend)) {
      continue;
    }
    shard.end_sent = now_;
    node::v1::ConnectResponse response;
    response.mutable_end_job()->set_job_id(job.id);
    Emit(Send{node->session, std::move(response)});
  }
}

// The lineage that they were for has ended: whatever history repeats them, they are checkpoints.
void CoordinatorCore::AnswerHandOvers(JobRecord& job) {
  job.hand_over_since = absl::InfiniteDuration();
  for (JobOrder& order : job.orders) {
    if (!order.hand_over || !order.order.suspend()) continue;
    order.order.clear_suspend();
    order.order.set_checkpoint(true);
  }
}

}  // namespace capstan::coordinator::core
