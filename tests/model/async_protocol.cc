// The beginning, the coordinator and the faults of the asynchronous model.
#include "tests/model/async_protocol.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/model/async_emitter.h"

namespace capstan::model {

static_assert(std::has_unique_object_representations_v<AsyncCore>, "states are compared as bytes");

AsyncState AsyncProtocol::Initial() {
  AsyncState state;
  AsyncCoordinator& c = state.core.coordinator;  // manifest 0 is virtual: the initial weights
  const int owners = world_.workers - (world_.spare ? 1 : 0);
  for (int lane = 0; lane < world_.lanes; ++lane)
    c.owner[lane] = static_cast<uint8_t>(lane * owners / world_.lanes);
  for (AsyncShard& shard : state.core.shard) shard.lineage = 1;
  for (int w = 0; w < world_.workers; ++w) {
    AsyncWorker& q = state.core.worker[w];
    q.alive = q.generation = q.lineage = 1;
    q.open = q.heard = 3;
    for (int lane = 0; lane < world_.lanes; ++lane) {
      if (c.owner[lane] == w) q.own |= static_cast<uint8_t>(1 << lane);
    }
  }
  const auto times = [](int n) { return static_cast<uint8_t>(n); };
  state.core.budget = {times(world_.deaths), times(world_.suspicions), times(world_.breaks),
                       times(world_.crashes)};
  Settle(&state);
  return state;
}

void AsyncProtocol::Successors(const AsyncState& state, bool describe, const Visit& visit) {
  if (Finished(state)) return;
  Emitter emit(this, state, describe, visit);
  for (const uint64_t message : state.network) {
    switch (UnpackAsync(message).type) {
      case AsyncType::kFrame:
        DeliverFrame(emit, message);
        break;
      case AsyncType::kView:
        DeliverView(emit, message);
        break;
      case AsyncType::kStart:
        DeliverStart(emit, message);
        break;
      case AsyncType::kCapture:
        Capture(emit, message);
        break;
      case AsyncType::kFile:  // handled in Commit
      case AsyncType::kNone:
        break;
    }
  }
  OpenStreams(emit);
  Ask(emit);
  BeginSteps(emit);
  Answer(emit);
  Commit(emit);
  TakeOver(emit);
  BeginLineage(emit);
  Faults(emit);
}

int AsyncProtocol::ClockOf(const AsyncCore& core, Part part) const {
  if (!Has(AsyncBug::kClockPerWorker)) return FloorOf(part, world_.lanes);
  int clock = world_.steps;
  for (int w = 0; w < world_.workers; ++w) {
    int fastest = -1;
    for (int lane = 0; lane < world_.lanes; ++lane) {
      if (core.coordinator.owner[lane] == w) fastest = std::max(fastest, MarkOf(part, lane));
    }
    if (fastest >= 0) clock = std::min(clock, fastest);
  }
  return clock;
}

// ---- Manifests ----

void AsyncProtocol::Commit(Emitter& emit) {
  const AsyncCoordinator& c = emit.core().coordinator;
  if (c.manifests == kAsyncManifests) return;
  const auto is_of = [&](const AsyncMessage& m, int shard) {
    return m.type == AsyncType::kFile && m.b == shard;
  };
  for (const uint64_t first : emit.from().network) {
    const AsyncMessage a = UnpackAsync(first);
    if (!is_of(a, 0)) continue;
    for (const uint64_t second : emit.from().network) {
      const AsyncMessage b = UnpackAsync(second);
      if (!is_of(b, 1) || a.a != b.a) continue;
      const bool current = a.lineage == c.lineage && b.lineage == c.lineage;
      const bool one_current = a.lineage == c.lineage || b.lineage == c.lineage;
      if (!(Has(AsyncBug::kManifestOfAnyLineage) ? one_current : current)) continue;
      if (a.lineage != b.lineage)
        Violate(absl::StrCat("A5: a manifest of lineages ", a.lineage, " and ", b.lineage));
      AsyncState next = emit.from();
      AsyncCoordinator& to = next.core.coordinator;
      AsyncManifest& manifest = to.manifest[to.manifests++];
      manifest.lineage = static_cast<uint8_t>(c.lineage);
      manifest.clock = static_cast<uint8_t>(a.a);
      for (int part = 0; part < kParts; ++part)
        manifest.part[part] = (ShardOf(part) == 0 ? a : b).part[part % 2];
      const bool last = a.a == world_.steps;
      for (int part = 0; part < kParts; ++part) {
        if (!Exists(part)) continue;
        CheckPart(manifest.part[part], part, "A5: a manifest's");
        if (last && FloorOf(manifest.part[part], world_.lanes) < world_.steps)
          Violate(absl::StrCat("A5: the job ends and a step lacks in part ", part));
      }
      if (last) to.done = 1;
      emit.Go(std::move(next), "commit the manifest", first);
    }
  }
}

// ---- Membership ----

void AsyncProtocol::TakeOver(Emitter& emit) {
  const AsyncCore& core = emit.core();
  const AsyncCoordinator& c = core.coordinator;
  if (c.generation >= 14) return;
  const auto move = [&](int from, int to, int lanes) {
    AsyncState next = emit.from();
    ++next.core.coordinator.generation;
    for (int lane = 0; lane < world_.lanes; ++lane) {
      if (c.owner[lane] == from && (lanes >> lane & 1) != 0)
        next.core.coordinator.owner[lane] = static_cast<uint8_t>(to);
    }
    return next;
  };
  for (int w = 0; w < world_.workers; ++w) {
    int owned = 0;
    bool sealed = true;
    for (int lane = 0; lane < world_.lanes; ++lane) {
      if (c.owner[lane] != w) continue;
      owned |= 1 << lane;
      sealed = sealed && MarkOf(core.shard[0].part[kSealPart], lane) == world_.steps;
    }
    const bool dead = core.worker[w].alive == 0;
    if (owned == 0 || (dead && sealed && Has(AsyncBug::kTakeoverBySeals))) continue;
    for (int to = 0; to < world_.workers; ++to) {
      if (to == w || core.worker[to].alive == 0) continue;
      if (dead) {
        emit.Go(move(w, to, owned), "lanes are taken over from, by", 0, w, to);
      } else if (core.budget.suspicions > 0) {
        AsyncState all = move(w, to, owned);
        --all.core.budget.suspicions;
        emit.Fault(std::move(all), "lanes are taken from (alive), by", 0, w, to);
        const int lowest = owned & -owned;
        if (lowest == owned) continue;
        AsyncState one = move(w, to, lowest);
        --one.core.budget.suspicions;
        emit.Fault(std::move(one), "one lane is taken from (alive), by", 0, w, to);
      }
    }
  }
}

void AsyncProtocol::BeginLineage(Emitter& emit) {
  const AsyncCore& core = emit.core();
  const AsyncCoordinator& c = core.coordinator;
  const bool lost = core.shard[0].incarnation != c.incarnation[0] ||
                    core.shard[1].incarnation != c.incarnation[1];
  if (!lost || c.lineage >= 7 || c.generation >= 14) return;
  AsyncState next = emit.from();
  AsyncCoordinator& n = next.core.coordinator;
  ++n.generation;
  ++n.lineage;
  n.base = static_cast<uint8_t>(n.manifests - 1);
  for (int s = 0; s < 2; ++s) n.incarnation[s] = core.shard[s].incarnation;
  emit.Go(std::move(next), "a lineage begins from manifest", 0, n.base);
}

// ---- Faults ----

namespace {

// The frames of a worker to the shards in a mask may come late or never, and it is owed no answer.
void LoseStreams(AsyncState* state, int worker, int shards) {
  for (uint64_t& bits : state->network) {
    const AsyncMessage m = UnpackAsync(bits);
    if (m.type == AsyncType::kFrame && m.e == worker && (shards >> ShardOf(m.a) & 1) != 0)
      bits = PackAsync(m.type, m.lineage, m.a, m.b, m.c, m.d, m.e, 1);
  }
  for (int s = 0; s < 2; ++s) {
    if ((shards >> s & 1) == 0) continue;
    for (int slot = 0; slot < 2; ++slot) {
      for (int lane = 0; lane < kAsyncLanes; ++lane) {
        state->core.shard[s].owed[worker][slot][lane] = 0;
        state->core.shard[s].parked_marks[worker][slot][lane] = 0;
      }
    }
  }
  state->core.worker[worker].open &= static_cast<uint8_t>(~shards);
}

}  // namespace

void AsyncProtocol::Faults(Emitter& emit) {
  const AsyncCore& core = emit.core();
  int living = 0;
  for (const AsyncWorker& q : core.worker) living += q.alive;
  for (int w = 0; w < world_.workers; ++w) {
    if (core.worker[w].alive == 0) continue;
    if (core.budget.deaths > 0 && living >= 2) {
      AsyncState next = emit.from();
      LoseStreams(&next, w, 3);
      next.core.worker[w] = AsyncWorker();
      --next.core.budget.deaths;
      emit.Fault(std::move(next), "a worker dies", 0, w);
    }
    for (int s = 0; s < 2 && core.budget.breaks > 0; ++s) {
      if ((core.worker[w].open >> s & 1) == 0) continue;
      AsyncState next = emit.from();
      LoseStreams(&next, w, 1 << s);
      --next.core.budget.breaks;
      emit.Fault(std::move(next), "a stream breaks, of worker and shard", 0, w, s);
    }
  }
  for (int s = 0; s < 2 && core.budget.crashes > 0; ++s) {
    if (core.shard[s].lineage == 0) continue;
    AsyncState next = emit.from();
    for (int w = 0; w < world_.workers; ++w) LoseStreams(&next, w, 1 << s);
    next.core.shard[s] = AsyncShard();
    next.core.shard[s].incarnation = static_cast<uint8_t>(core.shard[s].incarnation + 1);
    --next.core.budget.crashes;
    emit.Fault(std::move(next), "a shard crashes", 0, s);
  }
}

Verdict SearchAsync(const AsyncWorld& world, size_t max_states) {
  const SearchOptions options = {
      .max_states = max_states, .must_end = true, .dead_end = "END: the job cannot end"};
  const auto no_check = [](const AsyncState&) { return std::string(); };
  return Searcher<AsyncProtocol>(AsyncProtocol(world), no_check, options).Run();
}

}  // namespace capstan::model
