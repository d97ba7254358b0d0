// Moves of shards while a job trains: one more shard, one less, or one on another node.
//
// A move is a hand-over (departures.h) whose next lineage has other shards. The order is durable before the
// lead is told. The lead makes the next version the last of its lineage, and all shards save it. Once its
// manifest is committed, the next lineage begins from it, with the chunks placed anew over the new shards. Its
// view and its members are one record. So until that record the old shards are the job's, and after it the new
// ones: no version has two owners. Nothing counts as a restart, and the job stays RUNNING.
//
// A lineage that begins for another reason meanwhile, because a shard died, takes the move along. If the node
// cannot take the shard any more, the lineage begins with the shards as they were. A job that rests first drops
// the move.
#ifndef CAPSTAN_COORDINATOR_CORE_SHARD_MOVER_H_
#define CAPSTAN_COORDINATOR_CORE_SHARD_MOVER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "capstan/job/v1/job_service.pb.h"
#include "coordinator/core/core_context.h"
#include "coordinator/core/job.h"
#include "coordinator/core/job_states.h"
#include "coordinator/scheduler/gang.h"

namespace capstan::coordinator::core {

inline constexpr int kMaxShards = 256;  // of a job

// Not thread-safe. Borrows the parts that it is made of.
class ShardMover {
 public:
  ShardMover(CoreContext& ctx, JobStates& states) : ctx_(ctx), states_(states) {}

  // Orders the move. The answer is the order's id. Not OK, as MoveShard in job_service.proto says: the
  // reason, and nothing has changed.
  absl::StatusOr<int64_t> Order(Job& job, const job::v1::ShardMove& move);
  // As the scheduler's, for the lineage that is about to begin: it takes the move under way along. A lost shard
  // that the move takes away needs no home. The node that the move names is kept for it, and the node of a
  // drained shard is taken last. If some shard would have no home by that, the move does not count.
  std::optional<std::map<int32_t, std::string>> FindHomes(
      const Job& job, const scheduler::HomesRequest& request) const;
  // The next lineage begins now, and all lost shards have homes: the job gets the shards of the move under
  // way, if there is one.
  void Apply(Job& job);

 private:
  // The job as it is can be ordered to move shards.
  absl::Status CheckJob(const Job& job) const;
  // The shards and the node that are named make sense.
  absl::Status CheckMove(const Job& job, const job::v1::ShardMove& move) const;
  // Where the shard goes: the node that is named, or any that is free. FailedPrecondition, NotFound: why not.
  absl::StatusOr<Node*> HomeFor(const Job& job, const job::v1::ShardMove& move) const;
  absl::StatusOr<Node*> FreeHomeFor(const Job& job, const job::v1::ShardMove& move) const;
  // The hosts of the shards that stay have room for the parts of the drained one.
  absl::Status CheckRoomWithout(const Job& job, const job::v1::ShardMove& move) const;
  // The job's stores know what a move is.
  absl::Status CheckVersions(const Job& job) const;

  CoreContext& ctx_;
  JobStates& states_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_SHARD_MOVER_H_
