// Sums and versions, and the invariants about them.
#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "tests/model/messages.h"
#include "tests/model/protocol.h"

namespace capstan::model {

bool Covered(const Id* held, int block) {
  for (; block > 0; block /= 2) {
    if (held[block] != 0) return true;
  }
  return false;
}

Id Protocol::BlockValue(int block, int part, int step, Id weights0, Id weights1, int source) {
  std::array<Id, 4> leaves = {};
  for (int lane = 0; lane < world_.lanes; ++lane) {
    const bool bad = lane == 1 && step == world_.nonfinite_step && part != 0;
    leaves[lane] = ex_.Gradient(lane, part, step, weights0, weights1, source, !bad);
  }
  return ex_.TreeSum(block, world_.lanes, leaves);
}

namespace {

void DropBelow(Id* held, int block) {
  for (int child = 2 * block; child <= 2 * block + 1 && child < kBlocks; ++child) {
    held[child] = 0;
    DropBelow(held, child);
  }
}

}  // namespace

// R6 with R1's fold. False: nothing changed.
bool Protocol::Hold(Id* held, int block, Id value, bool is_seal) {
  const auto has = [&](Bug bug) { return !is_seal && world_.has(bug); };
  const int lanes = LanesBelow(block, world_.lanes);
  if (has(Bug::kArrivalOrder)) {  // held[0]: the lanes in the sum; held[2]: the sum so far
    if ((held[0] & lanes) != 0) return false;
    held[0] = static_cast<Id>(held[0] | lanes);
    held[2] = held[2] == 0 ? value : ex_.Sum(held[2], value);
    if (held[0] == AllLanes()) held[kRoot] = held[2];
    return true;
  }
  if (has(Bug::kNoDedupe)          ? held[kRoot] != 0
      : has(Bug::kNoAncestorCheck) ? held[block] != 0
                                   : Covered(held, block)) {
    return false;
  }
  if (has(Bug::kNoDiscard)) {  // everything stays, and is added once all lanes are there
    held[block] = value;
    int there = 0;
    for (int n = kRoot; n < kBlocks; ++n) there |= held[n] != 0 ? LanesBelow(n, world_.lanes) : 0;
    if (there != AllLanes()) return true;
    Id sum = 0;
    for (int n = kRoot; n < kBlocks; ++n) {
      if (held[n] != 0) sum = sum == 0 ? held[n] : ex_.Sum(sum, held[n]);
      held[n] = 0;
    }
    held[kRoot] = sum;
    return true;
  }
  DropBelow(held, block);
  held[block] = held[block] == 0 ? value : ex_.Sum(held[block], value);
  while (block > kRoot) {
    const int sibling = block ^ 1;
    Id sum = held[block];
    if (LanesBelow(sibling, world_.lanes) != 0) {
      if (held[sibling] == 0) break;
      sum = ex_.Sum(held[block & ~1], held[block | 1]);
    }
    held[block] = held[sibling] = 0;
    block /= 2;
    held[block] = held[block] == 0 ? sum : ex_.Sum(held[block], sum);
  }
  return true;
}

void Protocol::CheckSum(const Core& core, const Shard& shard, int slot, Id root) {
  std::vector<Id> gradients;
  ex_.Leaves(root, &gradients);
  int count[kMaxLanes] = {};
  std::array<Id, 4> by_lane = {};
  const Expression& first = ex_.at(gradients[0]);
  for (const Id id : gradients) {
    const Expression& g = ex_.at(id);
    ++count[g.lane];
    by_lane[g.lane] = id;
    if (g.step != shard.version)
      Violate(absl::StrCat("I2: a gradient of step ", g.step, " at step ", shard.version));
    if ((slot == 0 ? g.left : g.right) != shard.weights)
      Violate("I2: a gradient of other weights than it is applied to");
    if (g.left != first.left || g.right != first.right)
      Violate("I3: one step has gradients of two sets of weights");
    const Id other = slot == 0 ? g.right : g.left;
    for (int i = 2 * (1 - slot); i < 2 * (1 - slot) + 2; ++i) {
      const Shard& peer = core.shard[i];
      if (peer.lineage == shard.lineage && peer.version == shard.version && peer.weights != other)
        Violate("I3: a gradient of another history's weights of the other shard");
    }
  }
  for (int lane = 0; lane < world_.lanes; ++lane) {
    if (count[lane] != 1)
      Violate(absl::StrCat("I1: lane ", lane, " is in the sum ", count[lane], " times"));
  }
  if (violation_.empty() && root != ex_.TreeSum(kRoot, world_.lanes, by_lane))
    Violate("I8: the order of the sum is not the tree's");
}

void Protocol::CheckSeals(const Shard& lead) {
  std::vector<Id> seals;
  ex_.Leaves(lead.seals[kRoot], &seals);
  int count[kMaxLanes] = {};
  for (const Id id : seals) {
    const Expression& seal = ex_.at(id);
    ++count[seal.lane];
    if (seal.step != lead.version || seal.left != lead.weights)
      Violate("I2: a seal of another history is counted");
  }
  for (int lane = 0; lane < world_.lanes; ++lane) {
    if (count[lane] != 1)
      Violate(absl::StrCat("I1: the seal of lane ", lane, " is counted ", count[lane], " times"));
  }
}

// Applies a decision on the shard's step.
void Protocol::Publish(Core& core, int index, uint64_t decision) {
  Shard& n = core.shard[index];
  const Message m = Unpack(decision);
  const bool apply = (m.d & kApply) != 0;
  const Id root = n.held[kRoot];
  if (root == 0) {
    Violate("DEC: a decision on a step whose sum is not complete here");
    return;
  }
  if (apply) {
    CheckSum(core, n, index / 2, root);
    if (!Finite(root)) Violate("I7: a step that is not finite is applied");
    n.weights = ex_.Update(n.weights, root, m.c);
  }
  if (world_.replicas) {
    n.sum = apply ? root : Id{0};
    n.sum_rate = static_cast<uint8_t>(m.c);
    n.stepped = 1;
  }
  n.rate = static_cast<uint8_t>(m.c);
  if ((m.d & kCarriesOrder) != 0) n.order_step = n.version;
  n.decisions[n.version] = static_cast<uint8_t>(1 + m.d + 16 * m.c);
  ++n.version;
  if ((m.d & kStop) != 0) n.last = n.version;
  std::fill(n.held, n.held + kBlocks, Id{0});
  const bool last = n.version == n.last;
  if ((m.d & kCheckpoint) != 0)
    n.files[last ? 1 : 0] = {1, n.version, n.rate, n.order_step, n.weights};
  for (int i = 0; i < 4; ++i) {
    const Shard& peer = core.shard[i];
    if (i / 2 == index / 2 || peer.lineage != n.lineage) continue;
    for (int step = 0; step < kMaxSteps; ++step) {
      if (n.decisions[step] != 0 && peer.decisions[step] != 0 &&
          n.decisions[step] != peer.decisions[step]) {
        Violate(absl::StrCat("I7: two shards have different decisions on step ", step));
      }
    }
  }
}

// A replica has the weights and the state of every shard that is at the same version.
void Protocol::CheckReplica(const Core& core, const Worker& worker, int part) {
  for (int i = 2 * part; i < 2 * part + 2; ++i) {
    const Shard& n = core.shard[i];
    if (n.lineage == worker.lineage && n.version == worker.version[part] &&
        n.weights != worker.weights[part]) {
      Violate("I10: a replica differs from its shard");
    }
  }
}

// The weights of an undisturbed run in which the order took effect at order_step.
Id Protocol::Expected(int part, int version, int order_step) {
  const auto [known, fresh] = expected_.emplace(part * 4096 + version * 256 + order_step, Id{0});
  if (!fresh) return known->second;
  Id weights = ex_.Initial(part);
  if (version > 0) {
    const int step = version - 1;
    const Id before[2] = {Expected(0, step, order_step), Expected(1, step, order_step)};
    const int rate = world_.order == Order::kRate && order_step <= step ? 1 : 0;
    weights = step == world_.nonfinite_step
                  ? before[part]
                  : ex_.Update(before[part], BlockValue(kRoot, part, step, before[0], before[1], 0),
                               rate);
  }
  expected_[part * 4096 + version * 256 + order_step] = weights;
  return weights;
}

void Protocol::CheckManifest(const Coordinator& c, const Manifest& m) {
  if (c.order == 2 && ((c.order_step < m.version && m.order_step != c.order_step) ||
                       (m.order_step != kNever && m.order_step != c.order_step))) {
    Violate(absl::StrCat("I8: the order is journaled at step ", c.order_step,
                         ", the weights have it at step ", m.order_step));
  }
  if (m.rate > 1) Violate("I9: an order is in force twice");
  if (world_.free_bits) return;
  for (int part = 0; part < 2; ++part) {
    if (m.weights[part] != Expected(part, m.version, m.order_step)) {
      Violate(absl::StrCat("I8: version ", m.version, " of shard ", part,
                           " differs from the undisturbed run"));
    }
  }
}

}  // namespace capstan::model
