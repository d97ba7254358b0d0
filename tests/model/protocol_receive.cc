// The effects of a message that arrives.
#include <algorithm>
#include <cstring>

#include "tests/model/emitter.h"
#include "tests/model/messages.h"
#include "tests/model/protocol.h"

namespace capstan::model {

void Protocol::Deliver(Emitter& emit, uint64_t message) {
  const Coordinator& c = emit.core().coordinator;
  const Message m = Unpack(message);
  switch (m.type) {
    case Type::kFrame:
      return DeliverFrame(emit, message);
    case Type::kSeal:
    case Type::kPart:
    case Type::kEvaluation:
    case Type::kOrder:
      return DeliverToLead(emit, message);
    case Type::kWeights:
      return DeliverWeights(emit, message);
    case Type::kSum:
      return DeliverSum(emit, message);
    case Type::kView:
      return DeliverView(emit, message);
    case Type::kStartLineage:
      return DeliverStartLineage(emit, message);
    case Type::kDecision:
      return DeliverDecision(emit, message);
    case Type::kFilesTaken:
      for (int i = 0; i < 4; ++i) {
        const Shard& n = emit.core().shard[i];
        if (n.lineage != m.a || n.files[0].stage != 2 || n.files[0].version != m.b) continue;
        State next = emit.from();
        next.core.shard[i].files[0] = Snapshot();
        emit.Go(std::move(next), "deliver", message, i);
      }
      return;
    case Type::kOrderApplied:
      if (c.order == 1 && (m.a == c.lineage || world_.has(Bug::kOrderReportOfOldLineage))) {
        State next = emit.from();
        next.core.coordinator.order = 2;
        next.core.coordinator.order_step = static_cast<uint8_t>(m.b);
        emit.Go(std::move(next), "journal", message);
      }
      return;
    case Type::kFiles:  // handled in Commit
    case Type::kNone:
      return;
  }
}

void Protocol::DeliverFrame(Emitter& emit, uint64_t message) {
  const Message m = Unpack(message);
  for (int i = 0; i < 4; ++i) {
    const Shard& n = emit.core().shard[i];
    const int slot = i / 2;
    if (n.lineage == 0 || (slot == 1 && (m.d & 1) != 0)) continue;
    if (n.lineage != m.a && !world_.has(Bug::kNoFence)) continue;
    State next = emit.from();
    if (n.lineage == m.a && m.b > n.version) {
      Violate("AHEAD: a frame of a step ahead of the shard");
      emit.Go(std::move(next), "deliver", message, i);
      continue;
    }
    if (m.b != n.version || n.version >= n.last || n.version >= world_.steps) continue;
    const Id value =
        BlockValue(m.c, slot, m.b, static_cast<Id>(m.e), static_cast<Id>(m.f), m.d / 2);
    if (world_.has(Bug::kNonFiniteRefused) && !Finite(value)) continue;
    if (!Hold(next.core.shard[i].held, m.c, value, /*is_seal=*/false)) continue;
    emit.Go(std::move(next), "deliver", message, i);
  }
}

void Protocol::DeliverToLead(Emitter& emit, uint64_t message) {
  const Message m = Unpack(message);
  const bool any_lineage = (m.type == Type::kSeal && world_.has(Bug::kSealOfAnyLineage)) ||
                           (m.type == Type::kPart && world_.has(Bug::kPartOfAnyLineage));
  for (int i = 0; i < 2; ++i) {
    const Shard& n = emit.core().shard[i];
    if (n.lineage == 0 || (n.lineage != m.a && !any_lineage)) continue;
    const bool running = n.version < n.last && n.version < world_.steps;
    State next = emit.from();
    Shard& lead = next.core.shard[i];
    if (m.type == Type::kSeal) {
      if (m.b != n.version || !running) continue;
      const Id value = BlockValue(m.c, 2, m.b, static_cast<Id>(m.e), static_cast<Id>(m.f), m.d / 2);
      if (!Hold(lead.seals, m.c, value, /*is_seal=*/true)) continue;
    } else if (m.type == Type::kPart) {
      if (m.b != n.version || !running || (n.parts >> m.c & 1) != 0) continue;
      lead.parts |= static_cast<uint8_t>(1 << m.c);
      lead.bad_parts |= static_cast<uint8_t>(m.d << m.c);
    } else if (m.type == Type::kEvaluation) {
      const bool now = world_.has(Bug::kEvaluationNotAwaited) ? n.version >= m.b : n.version == m.b;
      if (!now || (n.blocks | m.c) == n.blocks) continue;
      lead.blocks |= static_cast<uint8_t>(m.c);
    } else {
      if (n.order_step != kNever || n.order_pending != 0 || !running) continue;
      lead.order_pending = 1;
    }
    emit.Go(std::move(next), "deliver", message, i);
  }
}

void Protocol::DeliverDecision(Emitter& emit, uint64_t message) {
  const Message m = Unpack(message);
  for (int i = 2; i < 4; ++i) {
    const Shard& n = emit.core().shard[i];
    if (n.lineage == 0 || n.version != m.b) continue;
    if (n.lineage != m.a && !world_.has(Bug::kDecisionOfAnyLineage)) continue;
    State next = emit.from();
    Publish(next.core, i, message);
    emit.Go(std::move(next), "deliver", message, i);
  }
}

// If both parts are of one version, the task computes all its lanes at it.
void Protocol::TakeWeights(Worker* worker) const {
  const bool both = worker->from[0] != 0 && worker->from[1] != 0;
  const bool equal = worker->version[0] == worker->version[1] && worker->from[0] == worker->from[1];
  worker->whole = both && (equal || world_.has(Bug::kPartialVersion)) ? 1 : 0;
  worker->taken = worker->own;
  worker->pushed = static_cast<uint8_t>(LargestBlocks(worker->own, world_.lanes));
}

void Protocol::DeliverWeights(Emitter& emit, uint64_t message) {
  const Message m = Unpack(message);
  for (int w = 0; w < world_.workers; ++w) {
    const Worker& q = emit.core().worker[w];
    if (q.alive == 0 || q.lineage == 0 || q.lineage != m.a) continue;
    if (q.from[m.c] != 0 && q.version[m.c] >= m.b) continue;
    State next = emit.from();
    Worker& worker = next.core.worker[w];
    worker.from[m.c] = static_cast<uint8_t>(m.a);
    worker.version[m.c] = static_cast<uint8_t>(m.b);
    worker.last[m.c] = static_cast<uint8_t>(m.d);
    worker.weights[m.c] =
        world_.has(Bug::kWholeWithoutState) ? ex_.Bare(static_cast<Id>(m.e)) : static_cast<Id>(m.e);
    TakeWeights(&worker);
    emit.Go(std::move(next), "deliver", message, w);
  }
}

// U3: a task makes version v of a part exactly if it has version v - 1 of it.
void Protocol::DeliverSum(Emitter& emit, uint64_t message) {
  const Message m = Unpack(message);
  for (int w = 0; w < world_.workers; ++w) {
    const Worker& q = emit.core().worker[w];
    if (q.alive == 0 || q.lineage == 0 || q.lineage != m.a || q.from[m.c] == 0) continue;
    const bool next_version = q.version[m.c] + 1 == m.b;
    const bool older = q.version[m.c] + 1 < m.b && world_.has(Bug::kSumOnAnyVersion);
    const bool again = q.version[m.c] == m.b && world_.has(Bug::kSumTwice);
    if (!next_version && !older && !again) continue;
    State next = emit.from();
    Worker& worker = next.core.worker[w];
    worker.version[m.c] = static_cast<uint8_t>(m.b);
    worker.last[m.c] = static_cast<uint8_t>(m.d & 15);
    if (m.e != 0)
      worker.weights[m.c] = ex_.Update(worker.weights[m.c], static_cast<Id>(m.e), m.d >> 4);
    CheckReplica(next.core, worker, m.c);
    TakeWeights(&worker);
    emit.Go(std::move(next), "deliver", message, w);
  }
}

void Protocol::DeliverView(Emitter& emit, uint64_t message) {
  const Message m = Unpack(message);
  const int owners[kMaxLanes] = {m.c & 15, m.c >> 4, m.d & 15, m.d >> 4};
  for (int w = 0; w < world_.workers; ++w) {
    if (emit.core().worker[w].alive == 0 || emit.core().worker[w].generation >= m.a) continue;
    State next = emit.from();
    Worker& worker = next.core.worker[w];
    worker.generation = static_cast<uint8_t>(m.a);
    worker.own = 0;
    for (int lane = 0; lane < world_.lanes; ++lane) {
      if (owners[lane] == w) worker.own |= static_cast<uint8_t>(1 << lane);
    }
    if (worker.lineage != m.b) {
      worker.lineage = static_cast<uint8_t>(m.b);
      if (world_.has(Bug::kWeightsSurviveLineage)) {
        TakeWeights(&worker);
      } else {
        worker.whole = worker.taken = worker.pushed = 0;
        for (int part = 0; part < 2; ++part) {
          worker.from[part] = worker.version[part] = 0;
          worker.last[part] = kNever;
          worker.weights[part] = 0;
        }
      }
    } else {
      // Gained lanes are blocks of their own. Lost lanes are finished.
      int gained = worker.own & ~worker.taken;
      if (world_.has(Bug::kSuccessorSkipsSealed)) {
        const Coordinator& c = next.core.coordinator;
        const Shard& lead = next.core.shard[Placed(c, c.lineage, 0)];
        for (int lane = 0; lane < world_.lanes; ++lane) {
          if (Covered(lead.seals, 4 + lane)) gained &= ~(1 << lane);
        }
      }
      worker.taken |= static_cast<uint8_t>(gained);
      worker.pushed |= static_cast<uint8_t>(LargestBlocks(gained, world_.lanes));
    }
    emit.Go(std::move(next), "deliver", message, w);
  }
}

void Protocol::DeliverStartLineage(Emitter& emit, uint64_t message) {
  const Message m = Unpack(message);
  for (int slot = 0; slot < 2; ++slot) {
    const int i = 2 * slot + ((m.c >> slot) & 1);
    const Shard& n = emit.core().shard[i];
    const Manifest& base = emit.core().coordinator.manifest[m.b];
    if (world_.has(Bug::kStartLineageTwice)) {
      if (n.lineage > m.a || (n.lineage == m.a && n.version == base.version && n.held[kRoot] == 0))
        continue;
    } else if (n.lineage >= m.a) {
      continue;
    }
    if (n.incarnation != (slot == 0 ? m.e : m.f) && !world_.has(Bug::kSameLineageAfterCrash))
      continue;
    State next = emit.from();
    Shard fresh;
    fresh.incarnation = n.incarnation;
    fresh.lineage = static_cast<uint8_t>(m.a);
    fresh.version = base.version;
    fresh.weights = base.weights[slot];
    if (world_.has(Bug::kSealsSurviveLineage)) std::memcpy(fresh.seals, n.seals, sizeof(n.seals));
    if (slot == 0) {
      fresh.rate = base.rate;
      fresh.order_step = base.order_step;
      if (fresh.order_step == kNever && m.d > 0) {
        fresh.order_pending = m.d == 1 || world_.has(Bug::kOrderAtAnotherStep) ? 1 : 2;
        if (m.d >= 2) fresh.order_at = static_cast<uint8_t>(m.d - 2);
      }
    }
    next.core.shard[i] = fresh;
    emit.Go(std::move(next), "deliver", message, i);
  }
}

}  // namespace capstan::model
