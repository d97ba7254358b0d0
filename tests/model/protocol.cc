// The actions of lead, shards and coordinator, and the faults.
#include "tests/model/protocol.h"

#include <algorithm>
#include <iterator>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "tests/model/emitter.h"
#include "tests/model/messages.h"

namespace capstan::model {

static_assert(std::has_unique_object_representations_v<Core>, "states are compared as bytes");

namespace {

// Whether this bug accepts what the rules refuse, so that no message is ever too old.
bool AcceptsOldMessages(Bug bug) {
  constexpr Bug kBugs[] = {Bug::kNoFence,
                           Bug::kDecisionOfAnyLineage,
                           Bug::kPartOfAnyLineage,
                           Bug::kSealOfAnyLineage,
                           Bug::kStartLineageTwice,
                           Bug::kSameLineageAfterCrash,
                           Bug::kCommitOfOldLineage,
                           Bug::kManifestOfTwoLineages,
                           Bug::kWeightsSurviveLineage,
                           Bug::kOrderReportOfOldLineage,
                           Bug::kSumTwice};
  return std::find(std::begin(kBugs), std::end(kBugs), bug) != std::end(kBugs);
}

}  // namespace

Protocol::Protocol(const World& world) : world_(world), keep_all_(AcceptsOldMessages(world.bug)) {}

State Protocol::Initial() {
  State state;
  Coordinator& c = state.core.coordinator;
  c.manifests = 1;  // manifest 0 is virtual: the initial weights
  for (int part = 0; part < 2; ++part) c.manifest[0].weights[part] = ex_.Initial(part);
  for (int lane = 0; lane < kMaxLanes; ++lane) {
    const int owner =
        world_.interleaved ? lane % world_.workers : lane * world_.workers / world_.lanes;
    c.owner[lane] = static_cast<uint8_t>(lane < world_.lanes ? owner : kNever);
  }
  for (int slot = 0; slot < 2; ++slot) {  // the first lineage is loaded
    Shard& shard = state.core.shard[2 * slot];
    shard.lineage = 1;
    shard.weights = ex_.Initial(slot);
  }
  for (int w = 0; w < world_.workers; ++w) {
    Worker& q = state.core.worker[w];
    q.alive = q.generation = q.lineage = 1;
    for (int lane = 0; lane < world_.lanes; ++lane) {
      if (c.owner[lane] == w) q.own |= static_cast<uint8_t>(1 << lane);
    }
    for (int part = 0; part < 2; ++part) {
      q.from[part] = 1;
      q.weights[part] = ex_.Initial(part);
    }
    TakeWeights(&q);
  }
  const auto times = [](int n) { return static_cast<uint8_t>(n); };
  state.core.budget = {times(world_.deaths),   times(world_.suspicions),
                       times(world_.cuts),     times(world_.crashes),
                       times(world_.restarts), times(world_.refusals),
                       times(world_.wipes),    times(world_.order == Order::kNone ? 0 : 1)};
  Settle(&state);
  return state;
}

bool Protocol::Finished(const State& state) const {
  const Coordinator& c = state.core.coordinator;
  if (!world_.has(Bug::kDoneBeforeManifest)) return c.done != 0;
  return c.done != 0 && c.manifests > 1 && c.manifest[c.manifests - 1].version == world_.steps;
}

void Protocol::Successors(const State& state, bool describe, const Visit& visit) {
  const Coordinator& c = state.core.coordinator;
  if (c.done != 0 && !world_.has(Bug::kDoneBeforeManifest)) return;
  Emitter emit(this, state, describe, visit);
  for (const uint64_t message : state.network) Deliver(emit, message);
  Decide(emit);
  WriteFiles(emit);
  Commit(emit);
  if (c.done == 0) {
    Reassign(emit);
    BeginLineages(emit);
  }
  Faults(emit);
}

// ---- The lead ----

void Protocol::Decide(Emitter& emit) {
  for (int i = 0; i < (world_.has(Bug::kDecisionPerShard) ? 4 : 2); ++i) {
    const Shard& n = emit.core().shard[i];
    if (n.lineage == 0 || n.version >= world_.steps || n.version >= n.last) continue;
    bool apply = false;
    if (world_.has(Bug::kDecisionPerShard)) {
      if (n.held[kRoot] == 0) continue;
      apply = Finite(n.held[kRoot]);
    } else {
      if (n.seals[kRoot] == 0 || n.parts != 3) continue;
      if (n.version == world_.evaluated_version && n.blocks != 3 &&
          !world_.has(Bug::kEvaluationNotAwaited)) {
        continue;
      }
      CheckSeals(n);
      apply = n.bad_parts == 0 && Finite(n.seals[kRoot]);
    }
    const bool order = n.order_pending == 1 || (n.order_pending == 2 && n.order_at == n.version);
    const int rate = n.rate + (order && world_.order == Order::kRate ? 1 : 0);
    // In the lineage of the move and after it, the order is a checkpoint.
    const Coordinator& c = emit.core().coordinator;
    const bool ends = world_.order == Order::kStop ||
                      (world_.order == Order::kMove && (c.moved == 0 || n.lineage < c.moved));
    const bool stop = n.version + 1 == world_.steps || (order && ends);
    // One checkpoint is in flight at most. The last version does not wait for it.
    const bool save =
        stop || ((world_.checkpoints >> (n.version + 1) & 1) != 0 && n.files[0].stage == 0);
    const int flags = (apply ? kApply : 0) | (stop ? kStop : 0) | (order ? kCarriesOrder : 0) |
                      (save ? kCheckpoint : 0);
    const uint64_t decision = Pack(Type::kDecision, n.lineage, n.version, rate, flags);
    State next = emit.from();
    Publish(next.core, i, decision);
    Shard& lead = next.core.shard[i];
    if (!world_.has(Bug::kDecisionPerShard)) {
      lead.decision = decision;
      next.network.push_back(decision);
    }
    if (order) lead.order_pending = 0;
    std::fill(lead.seals, lead.seals + kBlocks, Id{0});
    lead.parts = lead.bad_parts = 0;
    if (!world_.has(Bug::kEvaluationNotAwaited)) lead.blocks = 0;
    emit.Go(std::move(next), "decide", decision, i);
  }
}

// ---- Files and manifests ----

void Protocol::WriteFiles(Emitter& emit) {
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 2; ++j) {
      if (emit.core().shard[i].files[j].stage != 1) continue;
      State next = emit.from();
      next.core.shard[i].files[j].stage = 2;
      emit.Go(std::move(next), "write the file", 0, i, emit.core().shard[i].files[j].version);
    }
  }
}

void Protocol::Commit(Emitter& emit) {
  const Coordinator& c = emit.core().coordinator;
  if (world_.has(Bug::kDoneBeforeManifest) && c.done == 0) {
    const auto complete = [&](int slot) {
      const Shard& n = emit.core().shard[Placed(c, c.lineage, slot)];
      return n.lineage == c.lineage && n.version == world_.steps;
    };
    if (complete(0) && complete(1)) {
      State next = emit.from();
      next.core.coordinator.done = 1;
      emit.Go(std::move(next), "SUCCEEDED");
    }
  }
  if (c.manifests == kMaxManifests) return;
  CommitOneFile(emit);
  std::vector<Message> files;
  for (const uint64_t bits : emit.from().network) {
    if (Unpack(bits).type == Type::kFiles) files.push_back(Unpack(bits));
  }
  for (const Message& a : files) {
    for (const Message& b : files) {
      if (a.c != 0 || b.c != 1 || a.b != b.b) continue;
      if (a.a != b.a && !world_.has(Bug::kManifestOfTwoLineages)) continue;
      if (a.a != c.lineage && !world_.has(Bug::kManifestOfTwoLineages) &&
          !world_.has(Bug::kCommitOfOldLineage)) {
        continue;
      }
      const bool known = std::any_of(c.manifest, c.manifest + c.manifests, [&](const Manifest& m) {
        return m.lineage == a.a && m.version == a.b;
      });
      if (known) continue;
      Manifest m;
      m.lineage = static_cast<uint8_t>(a.a);
      m.version = static_cast<uint8_t>(a.b);
      m.rate = static_cast<uint8_t>(a.d & 15);
      m.order_step = static_cast<uint8_t>(a.d >> 4);
      m.weights[0] = static_cast<Id>(a.e);
      m.weights[1] = static_cast<Id>(b.e);
      if (a.a != b.a)
        Violate(absl::StrCat("I5: a manifest names files of lineages ", a.a, " and ", b.a));
      State next = emit.from();
      Coordinator& to = next.core.coordinator;
      to.manifest[to.manifests++] = m;
      const bool stopped =
          world_.order == Order::kStop && m.order_step != kNever && m.version == m.order_step + 1;
      const Shard& lead = emit.core().shard[Placed(c, c.lineage, 0)];
      const bool evaluated = !world_.has(Bug::kEvaluationNotAwaited) || lead.blocks == 3;
      if ((m.version == world_.steps || stopped) && evaluated) to.done = 1;
      if (m.lineage == c.lineage || to.done != 0) CheckManifest(c, m);
      emit.Go(std::move(next), "commit the manifest", 0, m.lineage, m.version);
    }
  }
}

// The bug kMovedWithOneFile: the other part is that of the lineage's base.
void Protocol::CommitOneFile(Emitter& emit) {
  const Coordinator& c = emit.core().coordinator;
  if (!world_.has(Bug::kMovedWithOneFile) || !MoveIsDue(c)) return;
  for (const uint64_t bits : emit.from().network) {
    const Message a = Unpack(bits);
    if (a.type != Type::kFiles || a.c != 0 || a.a != c.lineage) continue;
    Manifest m = c.manifest[c.base[c.lineage]];
    m.lineage = static_cast<uint8_t>(a.a);
    m.version = static_cast<uint8_t>(a.b);
    m.order_step = static_cast<uint8_t>(a.d >> 4);
    m.weights[0] = static_cast<Id>(a.e);
    if (m.order_step == kNever || m.version != m.order_step + 1) continue;
    State next = emit.from();
    Coordinator& to = next.core.coordinator;
    to.manifest[to.manifests++] = m;
    emit.Go(std::move(next), "commit a manifest with one file", 0, m.lineage, m.version);
  }
}

// ---- Membership ----

// Whether the reports of the lead and the shards show the coordinator that a lane lacks something.
bool Protocol::Lacks(const Core& core, int lane) const {
  const Coordinator& c = core.coordinator;
  const Shard& lead = core.shard[Placed(c, c.lineage, 0)];
  if (lead.lineage != c.lineage) return false;
  if (!Covered(lead.seals, 4 + lane)) return true;
  if (world_.has(Bug::kReissueBySealsOnly)) return false;
  for (int slot = 0; slot < 2; ++slot) {
    const Shard& n = core.shard[Placed(c, c.lineage, slot)];
    if (n.lineage == c.lineage && n.version <= lead.version && n.version < world_.steps &&
        !Covered(n.held, 4 + lane)) {
      return true;
    }
  }
  return false;
}

void Protocol::Reassign(Emitter& emit) {
  const Core& core = emit.core();
  const Coordinator& c = core.coordinator;
  if (c.generation >= 14) return;
  const auto usable = [&](int w) {
    return core.worker[w].alive != 0 && core.worker[w].cut == 0 && (c.lost >> w & 1) == 0;
  };
  const auto move = [&](int from, int to, int lanes, bool lost) {
    State next = emit.from();
    Coordinator& n = next.core.coordinator;
    ++n.generation;
    if (lost) n.lost |= static_cast<uint8_t>(1 << from);
    for (int lane = 0; lane < world_.lanes; ++lane) {
      if (n.owner[lane] == from && (lanes >> lane & 1) != 0)
        n.owner[lane] = static_cast<uint8_t>(to);
    }
    return next;
  };
  for (int w = 0; w < world_.workers; ++w) {
    int owned = 0;
    bool lacking = false;
    for (int lane = 0; lane < world_.lanes; ++lane) {
      if (c.owner[lane] != w) continue;
      owned |= 1 << lane;
      lacking = lacking || Lacks(core, lane);
    }
    if (owned == 0) continue;
    const bool dead = core.worker[w].alive == 0;
    const bool late = core.worker[w].cut != 0 && lacking;
    for (int to = 0; to < world_.workers; ++to) {
      if (to == w || !usable(to)) continue;
      if (dead || late) {
        emit.Go(move(w, to, owned, true), "lanes are taken over from, by", 0, w, to);
      } else if (core.budget.suspicions > 0) {
        State all = move(w, to, owned, false);
        --all.core.budget.suspicions;
        emit.Fault(std::move(all), "lanes are taken from (alive), by", w, to);
        const int lowest = owned & -owned;
        if (lowest == owned) continue;
        State one = move(w, to, lowest, false);
        --one.core.budget.suspicions;
        emit.Fault(std::move(one), "one lane is taken from (alive), by", w, to);
      }
    }
  }
  if (world_.has(Bug::kAnnouncedBeforeDurable) && c.generation == 1) {
    // The view is told, and then the coordinator dies. After its restart it uses the number for
    // another view.
    State next = emit.from();
    next.network.push_back(Pack(Type::kView, c.generation + 1, c.lineage,
                                (1 - c.owner[0]) | c.owner[1] << 4, c.owner[2] | c.owner[3] << 4));
    emit.Fault(std::move(next), "a view is told and not recorded; the coordinator dies");
  }
}

bool Protocol::MoveIsDue(const Coordinator& c) const {
  return world_.order == Order::kMove && c.order != 0 && c.moved == 0;
}

int Protocol::NewestManifest(const Coordinator& c) const {
  if (world_.has(Bug::kManifestByHighestStep)) {
    int best = 0;
    for (int i = 1; i < c.manifests; ++i) {
      if (c.manifest[i].version >= c.manifest[best].version) best = i;
    }
    return best;
  }
  for (int i = c.manifests - 1; i >= 1; --i) {
    if (c.manifest[i].lineage == c.lineage) return i;
  }
  return c.base[c.lineage];
}

void Protocol::StartLineage(Emitter& emit, int moved_slots, int base, bool fault) {
  const Coordinator& c = emit.core().coordinator;
  if (c.lineage + 1 >= kMaxLineages || c.generation >= 14) return;
  State next = emit.from();
  Coordinator& n = next.core.coordinator;
  ++n.generation;
  ++n.lineage;
  if (MoveIsDue(c)) {  // for whatever reason the lineage begins
    n.moved = n.lineage;
    moved_slots |= world_.moved;
  }
  n.place[n.lineage] = static_cast<uint8_t>(c.place[c.lineage] ^ moved_slots);
  n.base[n.lineage] = static_cast<uint8_t>(base);
  for (int slot = 0; slot < 2; ++slot)
    n.incarnation[n.lineage][slot] = next.core.shard[Placed(n, n.lineage, slot)].incarnation;
  const Manifest& from = n.manifest[base];
  // An order that an older manifest lacks was not applied yet in the history that continues from
  // it.
  if (n.order == 2 && from.order_step == kNever && n.order_step < from.version) n.order = 1;
  if (fault) {
    emit.Fault(std::move(next), "StartLineage without need, from manifest", base, moved_slots);
  } else {
    emit.Go(std::move(next), "StartLineage from manifest", 0, base);
  }
}

// The manifest of the version at which the order to move has ended the present lineage. -1: there is none.
int Protocol::EndOfLineage(const Core& core) const {
  const Coordinator& c = core.coordinator;
  if (world_.has(Bug::kMovedBeforeSaved)) {
    const Shard& lead = core.shard[Placed(c, c.lineage, 0)];
    return lead.lineage == c.lineage && lead.order_step != kNever ? NewestManifest(c) : -1;
  }
  for (int i = 1; i < c.manifests; ++i) {
    const Manifest& m = c.manifest[i];
    if (m.lineage == c.lineage && m.order_step != kNever && m.version == m.order_step + 1) return i;
  }
  return -1;
}

void Protocol::BeginLineages(Emitter& emit) {
  const Core& core = emit.core();
  const Coordinator& c = core.coordinator;
  bool lost = false;
  for (int slot = 0; slot < 2; ++slot) {
    lost = lost ||
           core.shard[Placed(c, c.lineage, slot)].incarnation != c.incarnation[c.lineage][slot];
  }
  const int base = NewestManifest(c);
  if (base != c.base[c.lineage] && c.manifest[base].lineage != c.lineage)
    Violate("I5: a lineage begins from a manifest of another history than it continues");
  if (lost && !world_.has(Bug::kSameLineageAfterCrash)) {
    StartLineage(emit, 0, base, false);
  } else if (const int end = MoveIsDue(c) ? EndOfLineage(core) : -1; end >= 0) {
    for (int slot = 0; slot < 2; ++slot) {
      const Shard& n = core.shard[Placed(c, c.lineage, slot)];
      if (n.lineage == c.lineage && n.version > c.manifest[end].version)
        Violate("I11: a move loses a step that a living shard has");
    }
    StartLineage(emit, 0, end, false);
  } else if (core.budget.restarts > 0) {
    State less = emit.from();
    --less.core.budget.restarts;
    const std::string carried = violation_;
    for (int moved = 0; moved < (world_.replace ? 3 : 1); ++moved) {
      if ((moved & c.place[c.lineage]) != 0) continue;
      violation_ = carried;
      Emitter inner = emit.From(less);
      StartLineage(inner, moved, base, true);
    }
  }
  violation_.clear();
  if (core.budget.refusals > 0) {
    State less = emit.from();
    --less.core.budget.refusals;
    Emitter inner = emit.From(less);
    for (int older = 0; older < c.manifests; ++older) {
      if (c.manifest[older].version < c.manifest[base].version) StartLineage(inner, 0, older, true);
    }
  }
}

// ---- Faults ----

void Protocol::Faults(Emitter& emit) {
  const Core& core = emit.core();
  const Coordinator& c = core.coordinator;
  int living = 0;
  for (int w = 0; w < world_.workers; ++w)
    living += core.worker[w].alive != 0 && core.worker[w].cut == 0 ? 1 : 0;
  for (int w = 0; c.done == 0 && w < world_.workers; ++w) {
    const Worker& q = core.worker[w];
    if (q.alive == 0 || q.cut != 0 || living < 2) continue;
    if (core.budget.deaths > 0) {
      State next = emit.from();
      next.core.worker[w] = Worker();
      --next.core.budget.deaths;
      emit.Fault(std::move(next), "a worker dies", w);
    }
    if (core.budget.cuts > 0) {
      State next = emit.from();
      next.core.worker[w].cut = 1;
      --next.core.budget.cuts;
      emit.Fault(std::move(next), "a worker never reaches shard 1 again", w);
    }
  }
  for (int slot = 0; core.budget.crashes > 0 && slot < 2; ++slot) {
    const int i = Placed(c, c.lineage, slot);
    if (core.shard[i].lineage == 0) continue;
    State next = emit.from();
    Shard fresh;
    fresh.incarnation = static_cast<uint8_t>(core.shard[i].incarnation + 1);
    next.core.shard[i] = fresh;
    --next.core.budget.crashes;
    emit.Fault(std::move(next), "a shard crashes", i);
  }
  if (c.done == 0 && core.budget.orders > 0) {
    State next = emit.from();
    next.core.coordinator.order = 1;
    --next.core.budget.orders;
    emit.Fault(std::move(next), "a person gives an order");
  }
  if (core.budget.wipes > 0) {
    State next = emit.from();
    next.network.clear();
    --next.core.budget.wipes;
    emit.Fault(std::move(next), "everything in flight is lost");
  }
}

}  // namespace capstan::model
