// A person moves shards while the job trains: one more, one less, one on another node.
#include <algorithm>
#include <vector>

#include "tests/sim/cluster.h"

namespace capstan::sim {
namespace {

constexpr absl::Duration kMoveAgain = absl::Milliseconds(300);

}  // namespace

void Cluster::PlanMoves() {
  moved_.resize(plan_.moves.size());
  for (size_t i = 0; i < plan_.moves.size(); ++i)
    queue_.After(plan_.moves[i].at, [this, i] { Move(i); });
}

// Repeats the order until it is accepted: the job may be at its end, or recover, or another move may be under
// way. If the answer was lost, the shard moves twice.
void Cluster::Move(size_t move) {
  if (moved_[move] || ended_) return;
  queue_.After(kMoveAgain, [this, move] { Move(move); });
  const coordinator::core::Job* const job =
      coordinator_ == nullptr || job_id_.empty() ? nullptr : coordinator_->Peek(job_id_);
  if (job == nullptr || job->shards().empty()) return;
  const PlannedMove& planned = plan_.moves[move];
  job::v1::MoveShardRequest request;
  request.set_job_id(job_id_);
  request.mutable_move()->set_change(planned.change);
  if (planned.change != job::v1::SHARD_CHANGE_ADD) {
    request.mutable_move()->set_shard(planned.shard % static_cast<int>(job->shards().size()));
  }
  if (planned.change == job::v1::SHARD_CHANGE_MOVE) {
    std::vector<std::string> free;
    for (const Node* node : shards_) {
      if (job->members().FindShardOn(node->name, node->incarnation) == nullptr)
        free.push_back(node->name);
    }
    if (free.empty()) return;
    request.mutable_move()->set_node(free[static_cast<size_t>(planned.shard) % free.size()]);
  }
  Ask({kFirstMove + static_cast<coordinator::core::CallId>(move),
       request,
       {.name = "", .any_job = true}});
}

void Cluster::NoteMove(const coordinator::core::Reply& reply) {
  if (reply.status.ok()) moved_[static_cast<size_t>(reply.call - kFirstMove)] = true;
}

}  // namespace capstan::sim
