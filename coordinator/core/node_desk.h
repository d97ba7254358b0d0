// Nodes: registration, leases, and what a person takes out of use.
#ifndef CAPSTAN_COORDINATOR_CORE_NODE_DESK_H_
#define CAPSTAN_COORDINATOR_CORE_NODE_DESK_H_

#include "coordinator/core/core_context.h"
#include "coordinator/core/departures.h"
#include "coordinator/core/heartbeats.h"
#include "coordinator/core/job_run.h"
#include "coordinator/core/losses.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

// Not thread-safe. Borrows the parts that it is made of.
class NodeDesk {
 public:
  NodeDesk(CoreContext& ctx, Losses& losses, JobRun& run, Heartbeats& heartbeats,
           Departures& departures)
      : ctx_(ctx), losses_(losses), run_(run), heartbeats_(heartbeats), departures_(departures) {}

  void Handle(const NodeConnected& connected);
  void Handle(const NodeMessage& message);
  void Handle(const NodeDisconnected& disconnected);
  void Handle(const SetDrained& drain);
  // Loses the nodes that were silent for a lease, and forgets those that were lost long ago.
  void ExpireLeases();
  // When a lease may end, or a lost node may be forgotten. InfiniteDuration: no node is there. All nodes are
  // looked at only if that may be before `tick`, for heartbeats only put leases off.
  absl::Duration FirstLeaseEnd(absl::Duration tick);
  // The nodes are others.
  void LookAtLeases() { first_lease_end_ = -absl::InfiniteDuration(); }

 private:
  // With all that it holds.
  void LoseNode(Node& node, const Loss& how);

  CoreContext& ctx_;
  Losses& losses_;
  JobRun& run_;
  Heartbeats& heartbeats_;
  Departures& departures_;
  // Before this no lease ends and no lost node is forgotten. Infinite: there is no such node.
  absl::Duration first_lease_end_ = absl::InfiniteDuration();
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_NODE_DESK_H_
