#include "tests/sim/plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "training/lead/loss_scale.h"

namespace capstan::sim {
namespace {

struct Drawn {
  FaultClass what;
  double chance;  // probability that a seed has the class
  int most;       // faults of the class
  absl::Duration shortest, longest;
};
constexpr absl::Duration Ms(int64_t n) { return absl::Milliseconds(n); }

// Faults that happen at a point in time. Leases of the simulation last a second.
const Drawn kDrawn[] = {
    {FaultClass::kStreamBreak, 0.4, 5, Ms(0), Ms(0)},
    {FaultClass::kCut, 0.3, 2, Ms(100), Ms(2500)},
    {FaultClass::kOneWayCut, 0.3, 2, Ms(100), Ms(2500)},
    {FaultClass::kTaskCrash, 0.35, 2, Ms(0), Ms(0)},
    {FaultClass::kWorkerCrash, 0.35, 2, Ms(50), Ms(3000)},
    {FaultClass::kShardCrash, 0.35, 2, Ms(50), Ms(2500)},
    {FaultClass::kCoordinatorCrash, 0.35, 2, Ms(50), Ms(3000)},
    {FaultClass::kTaskPause, 0.35, 3, Ms(100), Ms(2500)},
    {FaultClass::kShardPause, 0.25, 2, Ms(100), Ms(2500)},
    {FaultClass::kCoordinatorPause, 0.25, 2, Ms(100), Ms(2500)},
    {FaultClass::kDamage, 0.15, 1, Ms(0), Ms(0)},
    {FaultClass::kLeadBreak, 0.3, 8, Ms(0), Ms(0)},
};
const Drawn kDrawnLast[] = {
    {FaultClass::kSessionBreak, 0.35, 3, Ms(0), Ms(0)},
    {FaultClass::kLeave, 0.25, 2, Ms(50), Ms(2000)},
};

std::vector<PlannedOrder> DrawOrders(const Plan& plan, Random& random) {
  using What = training::Order::What;
  constexpr What kWhat[] = {What::kLearningRate, What::kCheckpoint, What::kSuspend};
  std::vector<PlannedOrder> orders;
  const int64_t count = 1 + random.Below(3);
  for (int64_t i = 0; i < count; ++i) {
    PlannedOrder& order = orders.emplace_back();
    order.what = kWhat[random.Below(3)];
    order.at = random.Between(Ms(100), Ms(1500));
    order.learning_rate = 0.0001 * static_cast<double>(2 + random.Below(8));
    order.rest = random.Between(Ms(0), Ms(1500));
    if (random.Chance(0.5)) order.workers = static_cast<int>(1 + random.Below(plan.workers));
    if (random.Chance(0.5)) order.shards = static_cast<int>(1 + random.Below(plan.shards));
  }
  return orders;
}

// Draws the kind of the job and of the cluster, and the faults that may hit any node.
void DrawKinds(Plan& plan, Random& random) {
  for (const Drawn& drawn : kDrawnLast) {
    if (!random.Chance(drawn.chance)) continue;
    const int64_t count = 1 + random.Below(drawn.most);
    for (int64_t i = 0; i < count; ++i) {
      Fault& fault = plan.faults.emplace_back();
      fault.what = drawn.what;
      fault.at = random.Between(Ms(100), plan.fault_time);
      fault.length = random.Between(drawn.shortest, drawn.longest);
      fault.target = static_cast<int>(random.Below(plan.workers + plan.shards));
    }
  }
  if (random.Chance(0.2)) {
    plan.local = true;
    plan.workers = std::min(plan.workers, 2);  // one worker is spare
    plan.shards = 1;                           // the shard is spare, too
    for (PlannedOrder& order : plan.orders) {
      order.workers = std::min(order.workers, plan.workers);
      order.shards = std::min(order.shards, plan.shards);
    }
  }
  if (!plan.local && plan.workers > 1 && random.Chance(0.4)) {
    plan.min_workers = static_cast<int>(1 + random.Below(plan.workers - 1));
    plan.steps += random.Below(6);
    const int64_t late = 1 + random.Below(plan.workers - plan.min_workers);
    for (int64_t i = 0; i < late; ++i) {
      plan.later.push_back(
          {plan.workers - 1 - static_cast<int>(i), random.Between(Ms(200), Ms(1200))});
    }
  }
  if (random.Chance(0.25)) {
    plan.toy.overflow_above =
        training::LossScale::kFirst / static_cast<double>(2 << random.Below(3));
  }
  if (random.Chance(0.2)) {
    Forgetting& forgetting = plan.forgetting.emplace();
    for (int i = 0; i < 4; ++i) forgetting.submits.push_back(random.Between(Ms(100), Ms(1500)));
    forgetting.gone_at = random.Between(Ms(300), Ms(2500));
    forgetting.goodbye = random.Chance(0.5);
  }
  // The norm of a toy gradient is about 1e5. Drawn apart, so that seeds keep their other faults.
  constexpr double kLimits[] = {1e3, 5e4, 1e9};
  Random apart(plan.seed * 7919 + 2);
  if (apart.Chance(0.25)) plan.toy.clip_norm = kLimits[apart.Below(3)];
  Random trust(plan.seed * 7919 + 4);
  if (trust.Chance(0.3)) {
    const bool lamb = trust.Chance(0.5) && plan.toy.clip_norm == 0;  // it does not clip
    plan.toy.optimizer = lamb ? Toy::Optimizer::kLamb : Toy::Optimizer::kLars;
  }
}

}  // namespace

absl::string_view NameOf(FaultClass what) {
  static constexpr absl::string_view kNames[kFaultClasses] = {"slow",
                                                              "repeat",
                                                              "reorder",
                                                              "corrupt",
                                                              "disk-full",
                                                              "sync-error",
                                                              "power-cut",
                                                              "stream-break",
                                                              "cut",
                                                              "one-way-cut",
                                                              "task-crash",
                                                              "worker-crash",
                                                              "shard-crash",
                                                              "coordinator-crash",
                                                              "task-pause",
                                                              "shard-pause",
                                                              "coordinator-pause",
                                                              "damage",
                                                              "lead-break",
                                                              "session-break",
                                                              "leave",
                                                              "local",
                                                              "elastic",
                                                              "loss-scale",
                                                              "forget",
                                                              "clip-norm",
                                                              "trust"};
  return kNames[static_cast<int>(what)];
}

bool Plan::has(FaultClass what) const {
  switch (what) {
    case FaultClass::kSlow:
      return exchange.slow > 0;
    case FaultClass::kRepeat:
      return exchange.repeat > 0;
    case FaultClass::kReorder:
      return exchange.reorder;
    case FaultClass::kCorrupt:
      return exchange.corrupt > 0;
    case FaultClass::kDiskFull:
      return disk_full > 0;
    case FaultClass::kSyncError:
      return sync_error > 0;
    case FaultClass::kPowerCut:
      return power_cuts;
    case FaultClass::kLocal:
      return local;
    case FaultClass::kElastic:
      return min_workers > 0;
    case FaultClass::kLossScale:
      return toy.overflow_above > 0;
    case FaultClass::kForget:
      return forgetting.has_value();
    case FaultClass::kClipNorm:
      return toy.clip_norm > 0;
    case FaultClass::kTrust:
      return toy.optimizer != Toy::Optimizer::kSgd;
    default:
      return std::any_of(faults.begin(), faults.end(),
                         [what](const Fault& fault) { return fault.what == what; });
  }
}

void Plan::Remove(FaultClass what) {
  switch (what) {
    case FaultClass::kSlow:
      exchange.slow = 0;
      return;
    case FaultClass::kRepeat:
      exchange.repeat = 0;
      return;
    case FaultClass::kReorder:
      exchange.reorder = false;
      return;
    case FaultClass::kCorrupt:
      exchange.corrupt = 0;
      return;
    case FaultClass::kDiskFull:
      disk_full = 0;
      return;
    case FaultClass::kSyncError:
      sync_error = 0;
      return;
    case FaultClass::kPowerCut:
      power_cuts = false;
      return;
    case FaultClass::kLocal:
      local = false;
      return;
    case FaultClass::kElastic:
      min_workers = 0;
      later.clear();
      return;
    case FaultClass::kLossScale:
      toy.overflow_above = 0;
      return;
    case FaultClass::kForget:
      forgetting.reset();
      return;
    case FaultClass::kClipNorm:
      toy.clip_norm = 0;
      return;
    case FaultClass::kTrust:
      toy.optimizer = Toy::Optimizer::kSgd;
      return;
    default:
      faults.erase(std::remove_if(faults.begin(), faults.end(),
                                  [what](const Fault& fault) { return fault.what == what; }),
                   faults.end());
  }
}

Plan DrawPlan(uint64_t seed) {
  Random random(seed * 7919 + 1);
  Plan plan;
  plan.seed = seed;
  plan.workers = static_cast<int>(1 + random.Below(5));
  plan.shards = static_cast<int>(1 + random.Below(3));
  constexpr int kLanes[] = {3, 5, 8, 16};
  plan.lanes = std::max(plan.workers, kLanes[random.Below(4)]);
  plan.steps = 6 + random.Below(8);
  plan.checkpoint_every = random.Chance(0.7) ? 1 + random.Below(4) : 0;
  plan.toy.by_lineage = random.Chance(0.5);
  if (random.Chance(0.25)) {
    plan.toy.nonfinite_step = random.Below(plan.steps);
    plan.toy.nonfinite_lane = static_cast<int32_t>(random.Below(plan.lanes));
  }
  if (random.Chance(0.4)) plan.exchange.slow = 0.1;
  if (random.Chance(0.4)) plan.exchange.repeat = 0.3;
  plan.exchange.reorder = random.Chance(0.4);
  if (random.Chance(0.25)) plan.exchange.corrupt = 0.05;
  if (random.Chance(0.25)) plan.disk_full = 0.3;
  if (random.Chance(0.2)) plan.sync_error = 0.3;
  plan.power_cuts = random.Chance(0.5);
  for (const Drawn& drawn : kDrawn) {
    if (!random.Chance(drawn.chance)) continue;
    const int64_t count = 1 + random.Below(drawn.most);
    for (int64_t i = 0; i < count; ++i) {
      Fault fault;
      fault.what = drawn.what;
      fault.at = random.Between(Ms(100), plan.fault_time);
      fault.length = random.Between(drawn.shortest, drawn.longest);
      const bool of_shard = drawn.what == FaultClass::kShardCrash ||
                            drawn.what == FaultClass::kShardPause ||
                            drawn.what == FaultClass::kLeadBreak;
      fault.target = static_cast<int>(random.Below(of_shard ? plan.shards : plan.workers));
      fault.peer = static_cast<int>(random.Below(plan.shards + 1));
      plan.faults.push_back(fault);
    }
  }
  if (random.Chance(0.35)) plan.orders = DrawOrders(plan, random);
  DrawKinds(plan, random);
  // Any two hosts that talk to each other, in either direction. Two workers never talk.
  const int hosts = 1 + plan.shards + plan.workers;
  for (Fault& fault : plan.faults) {
    if (fault.what != FaultClass::kCut && fault.what != FaultClass::kOneWayCut) continue;
    fault.peer = static_cast<int>(random.Below(1 + plan.shards));
    fault.target = static_cast<int>((fault.peer + 1 + random.Below(hosts - 1)) % hosts);
    if (random.Chance(0.5)) std::swap(fault.peer, fault.target);
  }
  return plan;
}

Plan AsynchronousPlan(uint64_t seed) {
  Plan plan = DrawPlan(seed);
  plan.Remove(FaultClass::kLocal);
  plan.Remove(FaultClass::kLossScale);
  plan.Remove(FaultClass::kClipNorm);
  plan.Remove(FaultClass::kTrust);
  plan.asynchronous = true;
  plan.toy.by_lineage = false;
  plan.toy.counted_lanes = plan.lanes;
  Random apart(seed * 7919 + 3);
  if (apart.Chance(0.5)) plan.max_staleness = apart.Below(4);
  plan.evaluates = apart.Chance(0.5);
  for (PlannedOrder& order : plan.orders) {
    // Another rate would hide how much a float has counted.
    if (order.what != training::Order::What::kLearningRate) continue;
    order.what = training::Order::What::kMaxStaleness;
    order.max_staleness = apart.Below(6) - 1;
  }
  return plan;
}

Plan CompressedPlan(uint64_t seed) {
  Plan plan = DrawPlan(seed);
  plan.compressed = true;
  plan.toy.short_floats = true;
  return plan;
}

Plan ResidualsPlan(uint64_t seed) {
  Plan plan = DrawPlan(seed);
  plan.toy.feedback = true;
  // A loss of a worker costs the steps since the last checkpoint.
  if (plan.checkpoint_every == 0 || plan.checkpoint_every > 4) plan.checkpoint_every = 1 + seed % 4;
  return plan;
}

Plan ReplicaPlan(uint64_t seed) {
  Plan plan = DrawPlan(seed);
  plan.Remove(FaultClass::kLocal);  // there is no other place than the task
  plan.replicas = true;
  return plan;
}

Plan LeavesPlan(uint64_t seed) {
  Plan plan;
  plan.seed = seed;
  plan.shards = 2;
  plan.spare_shards = static_cast<int>(seed % 2);
  plan.steps = 60;  // about 0.1 s each
  plan.fault_time = absl::Seconds(6);
  Random random(seed * 6151 + 3);
  for (int i = 0; i < 3; ++i) {
    plan.leaves.push_back({.at = absl::Seconds(1 + 2 * i) + random.Between(Ms(0), Ms(500)),
                           .shard = static_cast<int>(random.Below(plan.shards + plan.spare_shards)),
                           .grace = absl::Seconds(60),
                           .away = random.Between(Ms(50), Ms(500))});
  }
  return plan;
}

std::vector<ShardLeave> DrawLeaves(const Plan& plan) {
  Random random(plan.seed * 6151 + 5);
  std::vector<ShardLeave> leaves;
  const int64_t count = 1 + random.Below(3);
  for (int64_t i = 0; i < count; ++i) {
    leaves.push_back({.at = random.Between(Ms(100), plan.fault_time),
                      .shard = static_cast<int>(random.Below(plan.shards)),
                      .grace = random.Between(Ms(50), Ms(3000)),
                      .away = random.Between(Ms(50), Ms(2000))});
  }
  return leaves;
}

Plan MovesPlan(uint64_t seed) {
  Plan plan;
  plan.seed = seed;
  plan.shards = 2;
  plan.spare_shards = 2;
  plan.steps = 60;  // about 0.1 s each
  plan.fault_time = absl::Seconds(6);
  Random random(seed * 7919 + 3);
  constexpr job::v1::ShardChange kChanges[] = {
      job::v1::SHARD_CHANGE_ADD, job::v1::SHARD_CHANGE_DRAIN, job::v1::SHARD_CHANGE_MOVE};
  for (int i = 0; i < 3; ++i) {
    plan.moves.push_back({.at = absl::Seconds(1 + i) + random.Between(Ms(0), Ms(500)),
                          .change = kChanges[i],
                          .shard = static_cast<int>(random.Below(6))});
  }
  return plan;
}

std::vector<PlannedMove> DrawMoves(const Plan& plan) {
  Random random(plan.seed * 7919 + 5);
  constexpr job::v1::ShardChange kChanges[] = {
      job::v1::SHARD_CHANGE_ADD, job::v1::SHARD_CHANGE_DRAIN, job::v1::SHARD_CHANGE_MOVE};
  std::vector<PlannedMove> moves;
  const int64_t count = 2 + random.Below(4);
  for (int64_t i = 0; i < count; ++i) {
    moves.push_back({.at = random.Between(Ms(50), plan.fault_time / 2),
                     .change = kChanges[random.Below(3)],
                     .shard = static_cast<int>(random.Below(12))});
  }
  return moves;
}

Plan ThinLinkPlan(uint64_t seed) {
  Plan plan;
  plan.seed = seed;
  plan.shards = 3;
  plan.steps = 300;  // about 0.1 s each
  plan.thin_worker = 2;
  plan.thin_bytes_per_second = 12000;  // 3 s for a version
  plan.thin_from = absl::Seconds(3);
  plan.fault_time = absl::Seconds(100);
  return plan;
}

std::string ToString(const Plan& plan) {
  std::string text = absl::StrCat(plan.workers, " workers, ", plan.shards, " shards, ", plan.lanes,
                                  " lanes, ", plan.steps, " steps, checkpoint every ",
                                  plan.checkpoint_every, plan.toy.by_lineage ? ", D0" : "");
  if (plan.toy.nonfinite_step >= 0) {
    absl::StrAppend(&text, ", step ", plan.toy.nonfinite_step, " is not finite in lane ",
                    plan.toy.nonfinite_lane);
  }
  for (int i = 0; i < static_cast<int>(FaultClass::kStreamBreak); ++i) {
    const auto what = static_cast<FaultClass>(i);
    if (plan.has(what)) absl::StrAppend(&text, ", ", NameOf(what));
  }
  if (plan.local) absl::StrAppend(&text, ", local");
  if (plan.asynchronous) absl::StrAppend(&text, ", asynchronous");
  if (plan.compressed) absl::StrAppend(&text, ", compressed");
  if (plan.toy.feedback) absl::StrAppend(&text, ", error feedback");
  if (plan.replicas) absl::StrAppend(&text, ", workers update");
  if (!plan.evaluates) absl::StrAppend(&text, ", evaluated at the end");
  if (plan.max_staleness >= 0) absl::StrAppend(&text, ", staleness at most ", plan.max_staleness);
  if (plan.min_workers > 0) absl::StrAppend(&text, ", begins with ", plan.min_workers, " workers");
  if (plan.toy.overflow_above > 0)
    absl::StrAppend(&text, ", fp16 that overflows above a scale of ", plan.toy.overflow_above);
  if (plan.toy.clip_norm > 0)
    absl::StrAppend(&text, ", gradients with a norm above ", plan.toy.clip_norm, " are clipped");
  if (plan.has(FaultClass::kTrust)) absl::StrAppend(&text, ", ", plan.toy.optimizer_name());
  for (const LateHost& host : plan.later)
    absl::StrAppend(&text, "\n  ", absl::FormatDuration(host.at), " worker ", host.worker,
                    " comes");
  if (plan.forgetting.has_value()) {
    for (const absl::Duration at : plan.forgetting->submits)
      absl::StrAppend(&text, "\n  ", absl::FormatDuration(at), " a job that is cancelled");
    absl::StrAppend(&text, "\n  ", absl::FormatDuration(plan.forgetting->gone_at),
                    plan.forgetting->goodbye ? " a host leaves for good" : " a host dies for good");
  }
  for (const Fault& fault : plan.faults) {
    absl::StrAppend(&text, "\n  ", absl::FormatDuration(fault.at), " ", NameOf(fault.what), " ",
                    fault.target);
    if (fault.what == FaultClass::kCut || fault.what == FaultClass::kOneWayCut)
      absl::StrAppend(&text, " from ", fault.peer);
    if (fault.length > absl::ZeroDuration())
      absl::StrAppend(&text, " for ", absl::FormatDuration(fault.length));
  }
  for (const ShardLeave& leave : plan.leaves) {
    absl::StrAppend(&text, "\n  ", absl::FormatDuration(leave.at), " shard ", leave.shard,
                    " leaves within ", absl::FormatDuration(leave.grace), " for ",
                    absl::FormatDuration(leave.away));
  }
  for (const PlannedMove& move : plan.moves) {
    absl::StrAppend(&text, "\n  ", absl::FormatDuration(move.at), " ",
                    job::v1::ShardChange_Name(move.change), " of shard ", move.shard);
  }
  for (const PlannedOrder& order : plan.orders) {
    absl::StrAppend(&text, "\n  ", absl::FormatDuration(order.at), " order: ");
    switch (order.what) {
      case training::Order::What::kLearningRate:
        absl::StrAppend(&text, "learning rate ", order.learning_rate);
        break;
      case training::Order::What::kMaxStaleness:
        absl::StrAppend(&text, "staleness at most ", order.max_staleness);
        break;
      case training::Order::What::kCheckpoint:
        absl::StrAppend(&text, "checkpoint");
        break;
      case training::Order::What::kSuspend:
        absl::StrAppend(&text, "suspend for ", absl::FormatDuration(order.rest));
        if (order.workers > 0) absl::StrAppend(&text, ", then ", order.workers, " workers");
        if (order.shards > 0) absl::StrAppend(&text, ", then ", order.shards, " shards");
        break;
    }
  }
  return text;
}

Plan Shrink(Plan plan, const std::function<bool(const Plan&)>& fails, int max_runs) {
  const auto keep_if_failing = [&](Plan smaller) {
    if (max_runs <= 0) return false;
    --max_runs;
    if (!fails(smaller)) return false;
    plan = std::move(smaller);
    return true;
  };
  for (int i = 0; i < kFaultClasses; ++i) {
    const auto what = static_cast<FaultClass>(i);
    if (!plan.has(what)) continue;
    Plan smaller = plan;
    smaller.Remove(what);
    keep_if_failing(std::move(smaller));
  }
  for (size_t i = 0; i < plan.faults.size();) {
    Plan smaller = plan;
    smaller.faults.erase(smaller.faults.begin() + static_cast<int64_t>(i));
    if (!keep_if_failing(std::move(smaller))) ++i;
  }
  for (size_t i = 0; i < plan.moves.size();) {
    Plan smaller = plan;
    smaller.moves.erase(smaller.moves.begin() + static_cast<int64_t>(i));
    if (!keep_if_failing(std::move(smaller))) ++i;
  }
  for (size_t i = 0; i < plan.orders.size();) {
    Plan smaller = plan;
    smaller.orders.erase(smaller.orders.begin() + static_cast<int64_t>(i));
    if (!keep_if_failing(std::move(smaller))) ++i;
  }
  return plan;
}

}  // namespace capstan::sim
