// The faults of a cluster, and their end.
#include <algorithm>

#include "tests/sim/cluster.h"

namespace capstan::sim {

void Cluster::PlanFaults() {
  for (const Fault& fault : plan_.faults)
    queue_.At(queue_.now() + fault.at, [this, fault] { Befall(fault); });
  for (const ShardLeave& leave : plan_.leaves)
    queue_.At(queue_.now() + leave.at, [this, leave] { BeginLeaving(leave); });
  queue_.After(plan_.fault_time, [this] { Heal(); });
}

// Like HandOver in param_store/service.cc.
void Cluster::BeginLeaving(const ShardLeave& leave) {
  Node& node = *shards_[static_cast<size_t>(leave.shard) % shards_.size()];
  if (!node.service_runs || node.leave_by < absl::InfiniteDuration()) return;
  node.leave_by = queue_.now() + leave.grace;
  ReportSoon(node);
  LookWhetherFree(node, leave);
}

void Cluster::LookWhetherFree(Node& node, const ShardLeave& leave) {
  const bool free = node.shard->core() == nullptr;
  if (!free && queue_.now() < node.leave_by) {
    node.service.After(absl::Milliseconds(10),
                       [this, &node, leave] { LookWhetherFree(node, leave); });
    return;
  }
  if (free) ++result_.left;
  LeaveService(node);
  queue_.After(leave.away, [this, &node] { StartService(node); });
}

void Cluster::Heal() {
  exchange_faults_ = LinkFaults{};
  disk_.SetErrors(0, 0);
  network_.Heal();
}

void Cluster::Befall(const Fault& fault) {
  Node& worker = *workers_[fault.target % workers_.size()];
  Node& shard = *shards_[fault.target % shards_.size()];
  const absl::Duration until = queue_.now() + fault.length;
  const int deaf = HostOf(fault.target), peer = HostOf(fault.peer);
  switch (fault.what) {
    case FaultClass::kStreamBreak:
      if (worker.task == nullptr) return;
      if (worker.task->BreakStreams() == 0) return;
      break;
    case FaultClass::kCut:
      NoteSilenced(deaf, peer);
      network_.Cut(peer, deaf, until, fault.what);
      network_.Cut(deaf, peer, until, fault.what);
      return;  // the network counts each message that it holds back
    case FaultClass::kOneWayCut:
      NoteSilenced(deaf, peer);
      network_.Cut(peer, deaf, until, fault.what);
      return;
    case FaultClass::kLeadBreak: {
      int broken = 0;
      for (const Node* other : shards_) {
        if (other != &shard) broken += network_.BreakAll(shard.host, other->host);
      }
      if (broken == 0) return;
      break;
    }
    case FaultClass::kTaskCrash:
      if (worker.task == nullptr) return;
      EndTask(worker, /*signal=*/11);
      break;
    case FaultClass::kWorkerCrash:
    case FaultClass::kShardCrash: {
      Node& node = fault.what == FaultClass::kWorkerCrash ? worker : shard;
      if (!node.service_runs) return;
      StopService(node);
      queue_.At(until, [this, &node] { StartService(node); });
      break;
    }
    case FaultClass::kCoordinatorCrash:
      if (!coordinator_process_.alive()) return;
      StopCoordinator();
      queue_.At(until, [this] { StartCoordinator(); });
      ++result_.coordinator_restarts;
      break;
    case FaultClass::kTaskPause:
      if (worker.task == nullptr) return;
      worker.task_process.Pause(until);
      return;  // the process counts each event that it delays
    case FaultClass::kSessionBreak: {
      Node& node = *nodes_[static_cast<size_t>(fault.target) % nodes_.size()];
      if (node.session == nullptr || !node.registered) return;
      node.broken = true;
      node.session->Break();
      return;  // counted when the session is back
    }
    case FaultClass::kLeave:
      if (!LeaveService(worker)) return;
      queue_.At(until, [this, &worker] { StartService(worker); });
      break;
    case FaultClass::kShardPause:
      shard.silenced = true;
      shard.service.Pause(until);
      return;
    case FaultClass::kCoordinatorPause:
      coordinator_process_.Pause(until);
      return;
    case FaultClass::kDamage:
      disk_.FlipBit(".safetensors");
      return;  // the disk counts it
    default:   // faults that last are fields of the plan
      return;
  }
  result_.effects.Saw(fault.what);
}

// Notes the node of two hosts that do not hear each other, if one of them is the coordinator.
void Cluster::NoteSilenced(int a, int b) {
  if ((a == 0) == (b == 0)) return;
  nodes_[static_cast<size_t>(std::max(a, b) - 1)]->silenced = true;
}

// 0 is the coordinator's host. Then come the shards' hosts, then the workers'.
int Cluster::HostOf(int index) const { return index % (1 + static_cast<int>(nodes_.size())); }

}  // namespace capstan::sim
