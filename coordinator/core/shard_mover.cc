#include "coordinator/core/shard_mover.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/reasons.h"
#include "coordinator/core/scheduling.h"
#include "coordinator/scheduler/gang.h"
#include "training/spec/resolve.h"

namespace capstan::coordinator::core {
namespace {

using job::v1::ShardMove;

int64_t ShardsAfter(const Job& job, const ShardMove& move) {
  const auto shards = static_cast<int64_t>(job.shards().size());
  switch (move.change()) {
    case job::v1::SHARD_CHANGE_ADD:
      return shards + 1;
    case job::v1::SHARD_CHANGE_DRAIN:
      return shards - 1;
    default:
      return shards;
  }
}

// Of the host; nullopt: it does not say.
std::optional<int64_t> FreeMemory(const Node& node) {
  const common::v1::NodeUsage& usage = node.usage();
  if (!usage.has_memory_used_bytes() || !usage.has_memory_total_bytes()) return std::nullopt;
  return std::max<int64_t>(0, usage.memory_total_bytes() - usage.memory_used_bytes());
}

absl::Status MemoryShort(const Node& node, int64_t more, int64_t free) {
  using training::spec::BytesText;
  return absl::FailedPreconditionError(
      absl::StrCat("node ", node.name(), ": its host has ", BytesText(free),
                   " of free memory, and its shard would have ", BytesText(more), " more"));
}

}  // namespace

absl::StatusOr<int64_t> ShardMover::Order(Job& job, const ShardMove& move) {
  if (const absl::Status may = CheckJob(job); !may.ok()) return may;
  if (const absl::Status fits = CheckMove(job, move); !fits.ok()) return fits;
  Node* home = nullptr;
  if (move.change() != job::v1::SHARD_CHANGE_DRAIN) {
    const absl::StatusOr<Node*> found = HomeFor(job, move);
    if (!found.ok()) return found.status();
    home = *found;
  }
  if (const absl::Status fits = CheckMemory(job, move, home); !fits.ok()) return fits;
  node::v1::Order order;
  order.set_suspend(true);
  const int64_t id = states_.AddChange(job, std::move(order), /*hand_over=*/true, move);
  job.changes().BeginHandOver(ctx_.now());
  return id;
}

absl::Status ShardMover::CheckJob(const Job& job) const {
  const auto no = [&job](const std::string& why) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job.id(), ": ", why));
  };
  const std::string state = common::v1::JobState_Name(job.state()).substr(sizeof("JOB_STATE_") - 1);
  if (job.cancel_asked() && !job.ended()) return no("it is being cancelled");
  if (job.state() != common::v1::JOB_STATE_RUNNING) {
    return no(absl::StrCat("it is ", state, ", and shards move while a job is RUNNING"));
  }
  if (job.shards().empty()) {
    return no(
        absl::StrCat("it has no shards: kvstore '", job.resolved()->spec().kvstore().type(), "'"));
  }
  if (job.SuspendOrdered()) return no("it is being suspended");
  if (const JobChange* under_way = job.changes().Move(); under_way != nullptr) {
    return no(
        absl::StrCat("order ", under_way->order.id(), " is under way: ", ChangeText(*under_way)));
  }
  if (job.changes().HandOverOrdered()) return no("a shard of it is being handed over");
  if (job.unread() || job.recovery().wanted() || !job.AllShardsReady()) {
    return no("its shards are not all ready; try again");
  }
  if (job.lead().complete() || job.lead().step() + 1 >= job.resolved()->total_steps()) {
    return no("it is at its end");
  }
  if (job.members().living() == 0) return no("no worker computes");
  // Shards that cannot save could not hand over what they have.
  if (job.standing().Has(kCheckpointDegraded)) return no("its last checkpoint could not be saved");
  if (job.changes().size() >= static_cast<size_t>(ctx_.options().max_changes)) {
    return absl::ResourceExhaustedError(absl::StrCat("job ", job.id(), " has had ",
                                                     job.changes().size(), " orders, the limit is ",
                                                     ctx_.options().max_changes));
  }
  return absl::OkStatus();
}

absl::Status ShardMover::CheckMove(const Job& job, const ShardMove& move) const {
  const auto shards = static_cast<int32_t>(job.shards().size());
  const int64_t most = std::min<int64_t>(kMaxShards, job.resolved()->chunk_count());
  switch (move.change()) {
    case job::v1::SHARD_CHANGE_ADD:
      if (shards >= most) {
        return absl::InvalidArgumentError(
            absl::StrCat("job ", job.id(), " has ", shards, " shards, and can have ", most));
      }
      return absl::OkStatus();
    case job::v1::SHARD_CHANGE_DRAIN:
    case job::v1::SHARD_CHANGE_MOVE:
      if (move.shard() < 0 || move.shard() >= shards) {
        return absl::InvalidArgumentError(absl::StrCat("shard: got ", move.shard(), ", job ",
                                                       job.id(), " has 0 to ", shards - 1));
      }
      if (move.change() == job::v1::SHARD_CHANGE_DRAIN && shards == 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("shard: it is the only one of job ", job.id()));
      }
      if (move.change() == job::v1::SHARD_CHANGE_MOVE && move.node().empty()) {
        return absl::InvalidArgumentError("node: a move names one");
      }
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError("change: want add, drain or move");
  }
}

absl::StatusOr<Node*> ShardMover::HomeFor(const Job& job, const ShardMove& move) const {
  const std::optional<std::string> version = VersionOf(job, ctx_.nodes());
  if (move.node().empty()) {
    scheduler::HomesRequest request;
    for (const Shard& shard : job.shards()) request.shards.push_back({shard.index, shard.node});
    const auto index = static_cast<int32_t>(job.shards().size());
    request.shards.push_back({index, "", true});
    request.version = version;
    request.exclude = StraysOf(ctx_.nodes())[job.id()];
    const auto found = scheduler::FindHomes(NodesOf(ctx_.nodes()), request);
    if (found.has_value()) return ctx_.nodes().Find(found->at(index));
    return absl::FailedPreconditionError(
        absl::StrCat("no param_store is free for it: each one holds a shard of job ", job.id(),
                     ", is drained, not connected, or of another version"));
  }
  Node* const node = ctx_.nodes().Find(move.node());
  if (node == nullptr) return absl::NotFoundError(absl::StrCat("no node ", move.node()));
  const auto no = [&move](const std::string& why) {
    return absl::FailedPreconditionError(absl::StrCat("node ", move.node(), ": ", why));
  };
  if (node->is_worker()) return no("it is a worker, not a param_store");
  for (const Shard& shard : job.shards()) {
    if (shard.node == move.node())
      return no(absl::StrCat("it has shard ", shard.index, " already"));
  }
  if (!node->usable()) return no("it is not connected");
  if (node->drained()) return no("it is drained");
  if (node->leaving()) return no("its service stops");
  if (node->strays().count(job.id()) > 0) return no("it still holds an earlier shard of the job");
  if (version.has_value() && node->reg().version() != *version) {
    return no(absl::StrCat("it is of version ", node->reg().version(),
                           ", the job's members are of ", *version));
  }
  return node;
}

// All shards together keep what they have, in equal parts. As a lineage loads its chunks before the buffers of
// the last one are gone, a shard is counted with all that it will have.
absl::Status ShardMover::CheckMemory(const Job& job, const ShardMove& move,
                                     const Node* home) const {
  int64_t all = 0;
  for (const Shard& shard : job.shards()) all += shard.state.load().resident_bytes();
  const int64_t each = all / std::max<int64_t>(1, ShardsAfter(job, move));
  if (home != nullptr) {
    const std::optional<int64_t> free = FreeMemory(*home);
    if (free.has_value() && *free < each) return MemoryShort(*home, each, *free);
    return absl::OkStatus();
  }
  for (const Shard& shard : job.shards()) {
    const Node* const node = ctx_.nodes().FindIncarnation(shard.node, shard.incarnation);
    if (shard.index == move.shard() || node == nullptr) continue;
    const int64_t more = std::max<int64_t>(0, each - shard.state.load().resident_bytes());
    const std::optional<int64_t> free = FreeMemory(*node);
    if (free.has_value() && *free < more) return MemoryShort(*node, more, *free);
  }
  return absl::OkStatus();
}

std::optional<int32_t> ShardMover::TakenAway(const Job& job) {
  const JobChange* const change = job.changes().Move();
  if (change == nullptr || change->move->change() != job::v1::SHARD_CHANGE_DRAIN) {
    return std::nullopt;
  }
  return change->move->shard();
}

void ShardMover::Apply(Job& job) {
  const JobChange* const change = job.changes().Move();
  if (change == nullptr) return;
  const ShardMove& move = *change->move;
  const std::string order = absl::StrCat("order ", change->order.id(), ": ");
  std::string what;
  if (move.change() == job::v1::SHARD_CHANGE_DRAIN) {
    what = absl::StrCat(NameOf(job.shards()[static_cast<size_t>(move.shard())]), " is drained");
    job.members().RemoveShard(move.shard());
  } else {
    const absl::StatusOr<Node*> home = HomeFor(job, move);
    if (!home.ok()) {
      job.AddEvent(ctx_.wall(), "ShardsStay", absl::StrCat(order, home.status().message()));
      return;
    }
    if (move.change() == job::v1::SHARD_CHANGE_ADD) {
      job.members().AddShard(**home, job.id());
      what = absl::StrCat(NameOf(job.shards().back()), " is added on node ", (*home)->name());
    } else {
      const std::string from = job.shards()[static_cast<size_t>(move.shard())].node;
      job.members().ReplaceShard(move.shard(), **home, job.id());
      what = absl::StrCat("shard ", move.shard(), " moves from node ", from, " to node ",
                          (*home)->name());
    }
  }
  const size_t shards = job.shards().size();
  job.AddEvent(ctx_.wall(), "ShardsMoved",
               absl::StrCat(order, what, ", ", shards, shards == 1 ? " shard" : " shards"));
}

}  // namespace capstan::coordinator::core
