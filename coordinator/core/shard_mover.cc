#include "coordinator/core/shard_mover.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/reasons.h"
#include "coordinator/core/scheduling.h"
#include "coordinator/scheduler/gang.h"
#include "training/spec/resolve.h"

namespace capstan::coordinator::core {
namespace {

using job::v1::ShardMove;

constexpr size_t kMaxNodeName = 63;  // as Register in node.proto says

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

// All shards together keep what they have, in equal parts. A lineage loads its chunks before the buffers of the
// last one are gone, so a shard needs room for all that it will have.
int64_t BytesOfEach(const Job& job, const ShardMove& move) {
  int64_t all = 0;
  for (const Shard& shard : job.shards()) all += shard.state.load().resident_bytes();
  return all / std::max<int64_t>(1, ShardsAfter(job, move));
}

absl::Status CheckMemory(const Node& node, int64_t bytes) {
  using training::spec::BytesText;
  const std::optional<int64_t> free = FreeMemory(node);
  if (!free.has_value() || *free >= bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("node ", node.name(), ": its host has ", BytesText(*free),
                   " of free memory, and its shard would need ", BytesText(bytes)));
}

// A store of an earlier release takes no other number for its process and no other number of shards than its
// spec has, and refuses the job for it. Without a version, as in tests, nothing is checked.
absl::Status CheckVersion(const Node& node) {
  constexpr int kMajor = 0;
  constexpr int kMinor = 2;
  const std::vector<absl::string_view> parts = absl::StrSplit(node.reg().version(), '.');
  int major = 0;
  int minor = 0;
  if (parts.size() < 2 || !absl::SimpleAtoi(parts[0], &major) ||
      !absl::SimpleAtoi(parts[1], &minor) || std::pair(major, minor) >= std::pair(kMajor, kMinor)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat("node ", node.name(), ": it is of version ",
                                                    node.reg().version(), ", and shards move from ",
                                                    kMajor, ".", kMinor, " on"));
}

}  // namespace

absl::StatusOr<int64_t> ShardMover::Order(Job& job, const ShardMove& move) {
  if (const absl::Status may = CheckJob(job); !may.ok()) return may;
  if (const absl::Status fits = CheckMove(job, move); !fits.ok()) return fits;
  if (const absl::Status speaks = CheckVersions(job); !speaks.ok()) return speaks;
  if (move.change() != job::v1::SHARD_CHANGE_DRAIN) {
    if (const absl::StatusOr<Node*> home = HomeFor(job, move); !home.ok()) return home.status();
  } else if (const absl::Status room = CheckRoomWithout(job, move); !room.ok()) {
    return room;
  }
  ShardMove known;  // what this coordinator does not know is not written down
  known.set_change(move.change());
  known.set_shard(move.shard());
  known.set_node(move.node());
  node::v1::Order order;
  order.set_suspend(true);
  return states_.AddChange(job, std::move(order), /*hand_over=*/true, std::move(known));
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
  if (job.changes().HandOverOrdered()) return no("shards or lanes of it are being handed over");
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
  if (move.node().size() > kMaxNodeName) {
    return absl::InvalidArgumentError(
        absl::StrCat("node: got ", move.node().size(), " bytes, want at most ", kMaxNodeName));
  }
  switch (move.change()) {
    case job::v1::SHARD_CHANGE_ADD:
      if (move.shard() != 0) {
        return absl::InvalidArgumentError("shard: the one that is added has no number yet");
      }
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
      if (move.change() == job::v1::SHARD_CHANGE_DRAIN && !move.node().empty()) {
        return absl::InvalidArgumentError("node: the chunks of a drained shard go to all others");
      }
      if (move.change() == job::v1::SHARD_CHANGE_MOVE && move.node().empty()) {
        return absl::InvalidArgumentError("node: a move names one");
      }
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError("change: want add, drain or move");
  }
}

absl::Status ShardMover::CheckVersions(const Job& job) const {
  for (const Shard& shard : job.shards()) {
    const Node* const node = ctx_.nodes().FindIncarnation(shard.node, shard.incarnation);
    if (shard.lost || node == nullptr) continue;
    if (const absl::Status speaks = CheckVersion(*node); !speaks.ok()) return speaks;
  }
  return absl::OkStatus();
}

absl::StatusOr<Node*> ShardMover::HomeFor(const Job& job, const ShardMove& move) const {
  if (move.node().empty()) return FreeHomeFor(job, move);
  const std::optional<std::string> version = VersionOf(job, ctx_.nodes());
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
  if (const absl::Status speaks = CheckVersion(*node); !speaks.ok()) return speaks;
  const absl::Status room = CheckMemory(*node, BytesOfEach(job, move));
  if (!room.ok()) return room;
  return node;
}

absl::StatusOr<Node*> ShardMover::FreeHomeFor(const Job& job, const ShardMove& move) const {
  scheduler::HomesRequest request;
  for (const Shard& shard : job.shards()) request.shards.push_back({shard.index, shard.node});
  const auto index = static_cast<int32_t>(job.shards().size());
  request.shards.push_back({index, "", true});
  request.version = VersionOf(job, ctx_.nodes());
  request.exclude = StraysOf(ctx_.nodes())[job.id()];
  const int64_t bytes = BytesOfEach(job, move);
  const scheduler::Nodes nodes = NodesOf(ctx_.nodes());
  scheduler::HomesRequest with_room = request;
  for (const auto& [name, node] : ctx_.nodes().all()) {
    if (!CheckMemory(node, bytes).ok()) with_room.exclude.insert(name);
  }
  if (const auto found = scheduler::FindHomes(nodes, with_room); found.has_value()) {
    return ctx_.nodes().Find(found->at(index));
  }
  if (const auto found = scheduler::FindHomes(nodes, request); found.has_value()) {
    return CheckMemory(*ctx_.nodes().Find(found->at(index)), bytes);
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no param_store is free for it: each one holds a shard of job ", job.id(),
                   ", is drained, not connected, or of another version"));
}

absl::Status ShardMover::CheckRoomWithout(const Job& job, const ShardMove& move) const {
  const int64_t bytes = BytesOfEach(job, move);
  for (const Shard& shard : job.shards()) {
    const Node* const node = ctx_.nodes().FindIncarnation(shard.node, shard.incarnation);
    if (shard.index == move.shard() || node == nullptr) continue;
    if (const absl::Status room = CheckMemory(*node, bytes); !room.ok()) return room;
  }
  return absl::OkStatus();
}

std::optional<std::map<int32_t, std::string>> ShardMover::FindHomes(
    const Job& job, const scheduler::HomesRequest& request) const {
  const scheduler::Nodes nodes = NodesOf(ctx_.nodes());
  const JobChange* const change = job.changes().Move();
  if (change == nullptr || !CheckVersions(job).ok()) return scheduler::FindHomes(nodes, request);
  const ShardMove& move = *change->move;
  scheduler::HomesRequest with_move = request;
  if (!move.node().empty()) {
    const absl::StatusOr<Node*> home = HomeFor(job, move);
    if (!home.ok()) return scheduler::FindHomes(nodes, request);
    with_move.exclude.insert(move.node());
    // Where no member is left, all others are of its version.
    if (!with_move.version.has_value()) with_move.version = (*home)->reg().version();
  }
  const auto goes =
      std::find_if(with_move.shards.begin(), with_move.shards.end(), [&move](const auto& shard) {
        return move.change() != job::v1::SHARD_CHANGE_ADD && shard.index == move.shard();
      });
  const bool drains = move.change() == job::v1::SHARD_CHANGE_DRAIN;
  if (goes != with_move.shards.end() && (drains || goes->needs)) {
    if (drains) with_move.exclude.insert(goes->node);
    with_move.shards.erase(goes);
  }
  const auto speak = [this](const std::map<int32_t, std::string>& homes) {
    return std::all_of(homes.begin(), homes.end(), [this](const auto& home) {
      return CheckVersion(*ctx_.nodes().Find(home.second)).ok();
    });
  };
  auto found = scheduler::FindHomes(nodes, with_move);
  if (drains && !found.has_value()) {
    with_move.exclude = request.exclude;  // the node of the drained one, if no other is free
    found = scheduler::FindHomes(nodes, with_move);
  }
  return found.has_value() && speak(*found) ? found : scheduler::FindHomes(nodes, request);
}

void ShardMover::Apply(Job& job) {
  const JobChange* const change = job.changes().Move();
  if (change == nullptr) return;
  const ShardMove& move = *change->move;
  const std::string order = absl::StrCat("order ", change->order.id(), ": ");
  const auto stay = [&](const absl::Status& why) {
    job.AddEvent(ctx_.wall(), "ShardsStay", absl::StrCat(order, why.message()));
  };
  if (const absl::Status speaks = CheckVersions(job); !speaks.ok()) return stay(speaks);
  std::string what;
  if (move.change() == job::v1::SHARD_CHANGE_DRAIN) {
    what = absl::StrCat(NameOf(job.shards()[static_cast<size_t>(move.shard())]), " is drained");
    job.members().RemoveShard(move.shard());
  } else {
    const absl::StatusOr<Node*> home = HomeFor(job, move);
    if (!home.ok()) return stay(home.status());
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
