// What befalls a cluster, and that it stops.
#include <algorithm>

#include "tests/sim/cluster.h"

namespace capstan::sim {

void Cluster::PlanFaults() {
  for (const Fault& fault : plan_.faults)
    queue_.At(queue_.now() + fault.at, [this, fault] { Befall(fault); });
  queue_.After(plan_.fault_time, [this] { Heal(); });
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
  const int peer = fault.peer == 0 ? 0 : shards_[(fault.peer - 1) % shards_.size()]->host;
  switch (fault.what) {
    case FaultClass::kStreamBreak:
      if (worker.task == nullptr) return;
      worker.task->BreakStreams();
      break;
    case FaultClass::kCut:
      network_.Cut(peer, worker.host, until);
      network_.Cut(worker.host, peer, until);
      break;
    case FaultClass::kOneWayCut:
      network_.Cut(peer, worker.host, until);
      break;
    case FaultClass::kLeadBreak:
      if (shards_.size() == 1) return;
      for (const Node* other : shards_) {
        if (other != &shard) network_.BreakAll(shard.host, other->host);
      }
      break;
    case FaultClass::kTaskCrash:
      if (worker.task == nullptr) return;
      EndTask(worker, /*signal=*/11);
      break;
    case FaultClass::kWorkerCrash:
    case FaultClass::kShardCrash: {
      Node& node = fault.what == FaultClass::kWorkerCrash ? worker : shard;
      if (!node.service.alive()) return;
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
      break;
    case FaultClass::kShardPause:
      shard.service.Pause(until);
      break;
    case FaultClass::kCoordinatorPause:
      coordinator_process_.Pause(until);
      break;
    case FaultClass::kDamage:
      disk_.FlipBit(".safetensors");
      break;
    default:  // those that last are in the plan itself
      return;
  }
  ++result_.faults;
}

}  // namespace capstan::sim
