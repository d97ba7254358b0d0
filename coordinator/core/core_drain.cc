// Nodes that a person takes out of use: no new work, and what can go elsewhere goes.
#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"

namespace capstan::coordinator::core {

void CoordinatorCore::Handle(const SetDrained& drain) {
  Reply reply{drain.call, absl::OkStatus(), {}};
  if (nodes_.Find(drain.node) == nullptr && nodes_.drained().count(drain.node) == 0) {
    reply.status = absl::NotFoundError(absl::StrCat("no node ", drain.node));
  } else if (nodes_.SetDrained(drain.node, drain.drained)) {
    Emit(Persist{NodeDrained{drain.node, drain.drained}});
    for (const auto& entry : active_) ReleaseDrained(*entry.second);
    schedule_ = true;
  }
  Emit(std::move(reply));
}

// An elastic job goes on without the workers of drained nodes as long as that leaves it enough; the
// others keep theirs, which would cost them a takeover, or their slots, for nothing.
void CoordinatorCore::ReleaseDrained(JobRecord& job) {
  if (nodes_.drained().empty() || job.resting() || job.cancel_asked || !job.in_history() ||
      job.shards.empty() || job.lead.complete() || job.SuspendOrdered()) {
    return;
  }
  const GangRequest request = RequestOf(job.resolved->spec());
  if (request.min_workers <= 0 || request.min_workers >= request.num_workers) return;
  for (Rank& rank : job.ranks) {
    const Node* const node = nodes_.Find(rank.node);
    if (rank.lost || node == nullptr || !node->drained) continue;
    const int leaves = WorkersFor(rank.devices.size(), request.devices_per_worker);
    if (job.living_workers() - leaves < request.min_workers) return;
    LoseRank(job, rank, {.why = "its node is drained", .reason = "", .drained = true});
  }
}

}  // namespace capstan::coordinator::core
