// The workers of the asynchronous model.
#include <algorithm>
#include <bit>
#include <utility>

#include "tests/model/async_emitter.h"
#include "tests/model/async_protocol.h"

namespace capstan::model {

// The step at which a lane goes on.
int AsyncProtocol::Resume(const AsyncWorker& worker, int lane, bool taken_up) const {
  int lowest = world_.steps, highest = 0;
  for (int part = 0; part < kParts; ++part) {
    if (!IsChunk(part)) continue;
    lowest = std::min(lowest, MarkOf(worker.known[part], lane));
    highest = std::max(highest, MarkOf(worker.known[part], lane));
  }
  const int seal = MarkOf(worker.known[kSealPart], lane);
  if (Has(AsyncBug::kNextAfterAnyAnswer)) return highest;
  if (taken_up && Has(AsyncBug::kResumeHighest)) return highest;
  if (taken_up && Has(AsyncBug::kResumeIgnoresSeal)) return lowest;
  if (taken_up && Has(AsyncBug::kResumeBySealOnly)) return seal;
  return std::min(lowest, seal);
}

// A2: takes marks, and ends the steps that are over.
void AsyncProtocol::Hear(AsyncWorker* worker, int part, Part marks) const {
  worker->known[part] = static_cast<uint8_t>(MaxMarks(worker->known[part], marks & kMarksMask));
  for (int lane = 0; lane < world_.lanes; ++lane) {
    if (worker->begun[lane] != 0 &&
        Resume(*worker, lane, /*taken_up=*/false) >= worker->begun[lane])
      worker->begun[lane] = worker->floor[lane] = 0;
  }
  Forget(worker);
}

// Of lanes that a worker has nothing to do with, it needs only the floor.
void AsyncProtocol::Forget(AsyncWorker* worker) const {
  if (Has(AsyncBug::kClockPerWorker)) return;  // it needs more than the floor
  for (uint8_t& known : worker->known) {
    const int floor = Bounded() ? FloorOf(known, world_.lanes) : 0;
    for (int lane = 0; lane < world_.lanes; ++lane) {
      if ((worker->own >> lane & 1) == 0 && worker->begun[lane] == 0)
        known = static_cast<uint8_t>(WithMark(known, lane, floor));
    }
  }
}

int AsyncProtocol::WeightsFloor(const AsyncWorker& worker) const {
  int floor = world_.steps;
  for (int part = 0; part < kParts; ++part) {
    if (IsChunk(part)) floor = std::min(floor, FloorOf(worker.known[part], world_.lanes));
  }
  return floor;
}

// Whether a worker's weights of one shard are new enough for a step.
bool AsyncProtocol::Gate(const AsyncCore& core, const AsyncWorker& worker, int step,
                         int shard) const {
  const int wanted = LowestFloor(step);
  if (Has(AsyncBug::kGateBySeals)) return FloorOf(worker.known[kSealPart], world_.lanes) >= wanted;
  for (int part = 2 * shard; part < 2 * shard + 2; ++part) {
    if (IsChunk(part) && ClockOf(core, worker.known[part]) < wanted) return false;
  }
  return true;
}

void AsyncProtocol::DeliverView(Emitter& emit, uint64_t message) {
  const AsyncMessage m = UnpackAsync(message);
  const int owners[kAsyncLanes] = {m.b, m.c, m.d};
  for (int w = 0; w < world_.workers; ++w) {
    if (emit.core().worker[w].alive == 0 || emit.core().worker[w].generation >= m.a) continue;
    AsyncState next = emit.from();
    AsyncWorker& q = next.core.worker[w];
    const int owned = q.own;
    q.generation = static_cast<uint8_t>(m.a);
    q.own = 0;  // a step of a lost lane that was begun is finished
    for (int lane = 0; lane < world_.lanes; ++lane) {
      if (owners[lane] == w) q.own |= static_cast<uint8_t>(1 << lane);
    }
    if (q.lineage == m.lineage) {
      TakeUp(emit, next, message, w, q.own & ~owned, 0);
      continue;
    }
    AsyncWorker fresh;
    fresh.alive = 1;
    fresh.generation = q.generation;
    fresh.lineage = static_cast<uint8_t>(m.lineage);
    fresh.own = q.own;
    if (Has(AsyncBug::kMarksSurviveLineage)) std::copy(q.known, q.known + kParts, fresh.known);
    q = fresh;
    emit.Go(std::move(next), "deliver", message, w);
  }
}

// Emits a view, once for every set of marks that the worker may have heard of the lanes in
// `gained`, from part `part` on.
void AsyncProtocol::TakeUp(Emitter& emit, const AsyncState& state, uint64_t message, int w,
                           int gained, int part) {
  if (gained == 0 || part == kParts) {
    AsyncState next = state;
    Forget(&next.core.worker[w]);
    emit.Go(std::move(next), "deliver", message, w);
    return;
  }
  const AsyncWorker& q = state.core.worker[w];
  const AsyncShard& shard = state.core.shard[ShardOf(part)];
  const int lane = std::countr_zero(static_cast<unsigned>(gained));
  const int lowest = MarkOf(q.known[part], lane);
  const bool heard = q.begun[lane] == 0 && shard.lineage == q.lineage && Exists(part);
  const int highest = heard ? MarkOf(shard.part[part % 2], lane) : lowest;
  const bool last = part + 1 == kParts;
  for (int mark = lowest; mark <= highest; ++mark) {
    AsyncState next = state;
    uint8_t& known = next.core.worker[w].known[part];
    known = static_cast<uint8_t>(WithMark(known, lane, mark));
    TakeUp(emit, next, message, w, last ? gained & (gained - 1) : gained, last ? 0 : part + 1);
  }
}

namespace {

// Sends a step of a lane to the parts of one shard.
void SendFrame(AsyncState* state, int worker, int lane, int part) {
  const AsyncWorker& q = state->core.worker[worker];
  state->network.push_back(PackAsync(AsyncType::kFrame, q.lineage, part, lane, q.begun[lane] - 1,
                                     q.floor[lane], worker));
}

}  // namespace

// A stream's first answer has the marks. What it shows to be missing is sent again.
void AsyncProtocol::OpenStreams(Emitter& emit) {
  for (int w = 0; w < world_.workers; ++w) {
    for (int s = 0; s < 2; ++s) {
      const AsyncWorker& closed = emit.core().worker[w];
      const AsyncShard& shard = emit.core().shard[s];
      if (closed.alive == 0 || (closed.open >> s & 1) != 0 || shard.lineage != closed.lineage)
        continue;
      AsyncState next = emit.from();
      AsyncWorker& q = next.core.worker[w];
      q.open |= static_cast<uint8_t>(1 << s);
      q.heard |= static_cast<uint8_t>(1 << s);
      for (int part = 2 * s; part < 2 * s + 2; ++part) {
        if (Exists(part)) Hear(&q, part, Answered(shard, part));
      }
      for (int part = 2 * s; part < 2 * s + 2 && !Has(AsyncBug::kNoResend); ++part) {
        for (int lane = 0; lane < world_.lanes && Exists(part); ++lane) {
          if (q.begun[lane] != 0 && MarkOf(q.known[part], lane) < q.begun[lane])
            SendFrame(&next, w, lane, part);
        }
      }
      emit.Go(std::move(next), "a stream opens, of worker and shard", 0, w, s);
    }
  }
}

// K2
void AsyncProtocol::Ask(Emitter& emit) {
  if (!Bounded() || Has(AsyncBug::kNoAsk)) return;
  for (int w = 0; w < world_.workers; ++w) {
    const AsyncWorker& q = emit.core().worker[w];
    if (q.alive == 0 || q.heard != 3) continue;
    for (int lane = 0; lane < world_.lanes; ++lane) {
      const int step = Resume(q, lane, /*taken_up=*/true);
      if ((q.own >> lane & 1) == 0 || q.begun[lane] != 0 || step >= world_.steps) continue;
      for (int s = 0; s < 2; ++s) {
        const int once = 1 << (lane + kAsyncLanes * s);
        if ((q.open >> s & 1) == 0 || Gate(emit.core(), q, step, s)) continue;
        if (Has(AsyncBug::kAskOnlyOnce) && (q.asked & once) != 0) continue;
        AsyncState next = emit.from();
        if (Has(AsyncBug::kAskOnlyOnce)) next.core.worker[w].asked |= static_cast<uint8_t>(once);
        bool fresh = false;
        for (int part = 2 * s; part < 2 * s + 2; ++part) {
          if (!IsChunk(part) || emit.core().shard[s].owed[w][part % 2][lane] != 0) continue;
          Owe(&next.core.shard[s], w, part, lane, step);
          fresh = true;
        }
        if (fresh) emit.Go(std::move(next), "asks for newer weights, worker and lane", 0, w, lane);
      }
    }
  }
}

void AsyncProtocol::BeginSteps(Emitter& emit) {
  for (int w = 0; w < world_.workers; ++w) {
    const AsyncWorker& q = emit.core().worker[w];
    if (q.alive == 0 || q.heard != 3) continue;
    for (int lane = 0; lane < world_.lanes; ++lane) {
      const int step = Resume(q, lane, /*taken_up=*/true);
      if ((q.own >> lane & 1) == 0 || q.begun[lane] != 0 || step >= world_.steps) continue;
      if (Bounded() && (!Gate(emit.core(), q, step, 0) || !Gate(emit.core(), q, step, 1))) {
        continue;
      }
      AsyncState next = emit.from();
      AsyncWorker& worker = next.core.worker[w];
      worker.begun[lane] = static_cast<uint8_t>(1 + step);
      if (Bounded()) worker.floor[lane] = static_cast<uint8_t>(WeightsFloor(q));
      for (int part = 0; part < kParts; ++part) {
        if (Exists(part) && (q.open >> ShardOf(part) & 1) != 0) SendFrame(&next, w, lane, part);
      }
      emit.Go(std::move(next), "begins a step, worker and lane", 0, w, lane);
    }
  }
}

}  // namespace capstan::model
