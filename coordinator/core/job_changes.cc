#include "coordinator/core/job_changes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace capstan::coordinator::core {
namespace {

void MakeCheckpoint(node::v1::Order& order) {
  order.clear_suspend();
  order.set_checkpoint(true);
}

std::string MoveText(const job::v1::ShardMove& move) {
  const std::string on = move.node().empty() ? "" : absl::StrCat(" on node ", move.node());
  switch (move.change()) {
    case job::v1::SHARD_CHANGE_ADD:
      return absl::StrCat("add a shard", on);
    case job::v1::SHARD_CHANGE_DRAIN:
      return absl::StrCat("drain shard ", move.shard());
    default:
      return absl::StrCat("move shard ", move.shard(), " to node ", move.node());
  }
}

}  // namespace

std::string ChangeText(const JobChange& change) {
  if (change.move.has_value()) return MoveText(*change.move);
  if (change.hand_over) return "hand-over";
  switch (change.order.what_case()) {
    case node::v1::Order::kLearningRate:
      return absl::StrCat("learning rate ", change.order.learning_rate());
    case node::v1::Order::kMaxStaleness:
      return change.order.max_staleness() < 0
                 ? "max_staleness any"
                 : absl::StrCat("max_staleness ", change.order.max_staleness());
    case node::v1::Order::kSuspend:
      return "suspend";
    default:
      return "checkpoint";
  }
}

JobChange* JobChanges::Find(int64_t id) {
  if (id < 1 || id > static_cast<int64_t>(changes_.size())) return nullptr;
  return &changes_[static_cast<size_t>(id - 1)];
}

int64_t JobChanges::Add(node::v1::Order order, bool hand_over,
                        std::optional<job::v1::ShardMove> move) {
  const auto id = static_cast<int64_t>(changes_.size()) + 1;
  order.set_id(id);
  changes_.push_back({std::move(order), 0, hand_over, std::move(move)});
  GiveAtOnce();
  return id;
}

bool JobChanges::HandOverOrdered() const {
  return std::any_of(changes_.begin(), changes_.end(), [](const JobChange& change) {
    return change.hand_over && change.order.suspend();
  });
}

const JobChange* JobChanges::Move() const {
  const auto it = std::find_if(changes_.begin(), changes_.end(), [](const JobChange& change) {
    return change.move.has_value() && change.order.suspend();
  });
  return it == changes_.end() ? nullptr : &*it;
}

absl::Duration JobChanges::HandOverFor(absl::Duration now) {
  hand_over_since_ = std::min(hand_over_since_, now);
  return now - hand_over_since_;
}

bool JobChanges::SuspendOrdered(const std::vector<int64_t>& applied) const {
  return std::any_of(changes_.begin(), changes_.end(), [&applied](const JobChange& change) {
    return change.order.suspend() && !change.hand_over &&
           std::find(applied.begin(), applied.end(), change.order.id()) == applied.end();
  });
}

void JobChanges::AnswerSuspends() {
  for (JobChange& change : changes_) {
    if (change.order.suspend()) MakeCheckpoint(change.order);
  }
}

void JobChanges::AnswerHandOvers() {
  hand_over_since_ = absl::InfiniteDuration();
  for (JobChange& change : changes_) {
    if (change.hand_over && change.order.suspend()) MakeCheckpoint(change.order);
  }
}

}  // namespace capstan::coordinator::core
