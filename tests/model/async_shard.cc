// The shards of the asynchronous model, and the invariants about parts.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/model/async_emitter.h"
#include "tests/model/async_protocol.h"

namespace capstan::model {

// Every step below the mark is counted once, and no other step.
void AsyncProtocol::CheckPart(Part part, int index, const char* rule) {
  for (int lane = 0; lane < world_.lanes; ++lane) {
    for (int step = 0; step < world_.steps; ++step) {
      const bool skipped = world_.skip && lane == 0 && step == 0 && IsChunk(index);
      const int want = step < MarkOf(part, lane) && !skipped ? 1 : 0;
      const int count = CountOf(part, lane, step);
      if (count == want) continue;
      Violate(absl::StrCat(rule, " part ", index, " counts step ", step, " of lane ", lane, " ",
                           count, " times at mark ", MarkOf(part, lane)));
    }
  }
}

// ---- Frames and answers ----

// The lowest floor that weights for a step may have.
int AsyncProtocol::LowestFloor(int step) const {
  return step - world_.k - (Has(AsyncBug::kOneTooStale) ? 1 : 0);
}

// Whether the answer to a step waits.
bool AsyncProtocol::Parked(const AsyncCore& core, const AsyncShard& shard, int s, int step) const {
  if (!Bounded()) return false;
  const int wanted = LowestFloor(step) + (Has(AsyncBug::kParkedTooLong) ? 1 : 0);
  for (int part = 2 * s; part < 2 * s + 2; ++part) {
    if (IsChunk(part) && ClockOf(core, shard.part[part % 2]) < wanted) return true;
  }
  return false;
}

// What an answer says about a part.
Part AsyncProtocol::Answered(const AsyncShard& shard, int part) const {
  return shard.part[Has(AsyncBug::kMarksPerShard) && part == 3 ? 0 : part % 2];
}

void AsyncProtocol::Owe(AsyncShard* shard, int worker, int part, int lane, int step) const {
  shard->owed[worker][part % 2][lane] = static_cast<uint8_t>(1 + step);
  if (Has(AsyncBug::kComposedWhenParked)) {
    shard->parked_marks[worker][part % 2][lane] =
        static_cast<uint8_t>(shard->part[part % 2] & kMarksMask);
  }
}

// A1
void AsyncProtocol::Count(AsyncShard* shard, const AsyncMessage& m) {
  const int lane = m.b, step = m.c;
  Part& part = shard->part[m.a % 2];
  const int mark = MarkOf(Answered(*shard, m.a), lane);
  bool fresh = step == mark;
  if (step > mark) Violate(absl::StrCat("A2: a frame of step ", step, " at mark ", mark));
  if (step < mark && Has(AsyncBug::kNoDedupe)) fresh = true;
  if (Has(AsyncBug::kKeyWithWorker)) {
    Part& keys = shard->extra[m.a % 2];
    const Part key = Part{1} << (9 * m.e + kAsyncSteps * lane + step);
    fresh = (keys & key) == 0;
    keys |= key;
  }
  if (!fresh) return;
  const bool skipped = world_.skip && lane == 0 && step == 0 && IsChunk(m.a);
  if (!skipped) part = Counted(part, lane, step);
  part = WithMark(part, lane, std::max(MarkOf(part, lane), step + 1));
  if (IsChunk(m.a) && step - m.d > world_.k)
    Violate(absl::StrCat("K: step ", step, " was computed on weights with floor ", m.d));
  CheckPart(part, m.a, "A1:");
}

void AsyncProtocol::DeliverFrame(Emitter& emit, uint64_t message) {
  const AsyncMessage m = UnpackAsync(message);
  const int s = ShardOf(m.a);
  const AsyncShard& before = emit.core().shard[s];
  if (before.lineage == 0) return;
  AsyncState next = emit.from();
  AsyncShard& shard = next.core.shard[s];
  const bool stray = m.f != 0;
  if (!stray) std::erase(next.network, message);
  if (before.lineage != m.lineage) {
    if (!Has(AsyncBug::kNoFence)) return;
    Violate(absl::StrCat("A4: a frame of lineage ", m.lineage, " in lineage ", before.lineage));
  }
  const bool past = m.c < MarkOf(before.part[m.a % 2], m.b);
  const bool skipped = world_.skip && m.b == 0 && m.c == 0 && IsChunk(m.a);
  const bool dropped = skipped && Has(AsyncBug::kSkipRaisesNoMark);
  if (!dropped) Count(&shard, m);
  AsyncWorker& q = next.core.worker[m.e];
  const bool answered = !stray && q.alive != 0 && q.lineage == m.lineage && (q.open >> s & 1) != 0;
  if (answered && !dropped && !(past && Has(AsyncBug::kPastNotAnswered))) {
    if (m.a == kSealPart) {
      Hear(&q, m.a, Answered(shard, m.a));
    } else if (!Has(AsyncBug::kParkedIsDropped) || !Parked(next.core, shard, s, m.c + 1)) {
      Owe(&shard, m.e, m.a, m.b, m.c + 1);
    }
  }
  if (stray) {
    emit.Fault(std::move(next), "deliver", message);
  } else {
    emit.Go(std::move(next), "deliver", message);
  }
}

bool AsyncProtocol::CanAnswer(const AsyncCore& core, int w, int part, int lane) const {
  const int s = ShardOf(part);
  const AsyncShard& shard = core.shard[s];
  const AsyncWorker& q = core.worker[w];
  const int step = shard.owed[w][part % 2][lane] - 1;
  if (step < 0 || q.alive == 0 || q.lineage != shard.lineage) return false;
  return (q.open >> s & 1) != 0 && !Parked(core, shard, s, step);
}

void AsyncProtocol::AnswerOne(AsyncCore* core, int w, int part, int lane) {
  AsyncShard& shard = core->shard[ShardOf(part)];
  uint8_t& owed = shard.owed[w][part % 2][lane];
  uint8_t& parked_marks = shard.parked_marks[w][part % 2][lane];
  const int step = owed - 1;
  const Part marks =
      Has(AsyncBug::kComposedWhenParked) ? Part{parked_marks} : Answered(shard, part);
  if (Bounded() && ClockOf(*core, marks) < LowestFloor(step))
    Violate(absl::StrCat("A7: an answer to step ", step, " has too low a floor"));
  owed = parked_marks = 0;
  Hear(&core->worker[w], part, marks);
}

void AsyncProtocol::Answer(Emitter& emit) {
  for (int w = 0; w < world_.workers && world_.late_answers; ++w) {
    for (int part = 0; part < kParts; ++part) {
      for (int lane = 0; lane < world_.lanes; ++lane) {
        if (!CanAnswer(emit.core(), w, part, lane)) continue;
        AsyncState next = emit.from();
        AnswerOne(&next.core, w, part, lane);
        emit.Go(std::move(next), "an answer, part and worker", 0, part, w);
      }
    }
  }
}

void AsyncProtocol::AnswerAtOnce(AsyncCore* core) {
  for (int w = 0; w < world_.workers && !world_.late_answers; ++w) {
    for (int part = 0; part < kParts; ++part) {
      for (int lane = 0; lane < world_.lanes; ++lane) {
        if (CanAnswer(*core, w, part, lane)) AnswerOne(core, w, part, lane);
      }
    }
  }
}

// ---- Checkpoints and lineages ----

// A5
void AsyncProtocol::Capture(Emitter& emit, uint64_t message) {
  const AsyncMessage m = UnpackAsync(message);
  const int clock = m.a;
  for (int s = 0; s < 2; ++s) {
    const AsyncShard& shard = emit.core().shard[s];
    if (shard.lineage != m.lineage || (shard.captured >> clock & 1) != 0) continue;
    bool waits = false;
    for (int part = 2 * s; part < 2 * s + 2 && clock == world_.steps; ++part)
      waits = waits || (IsChunk(part) && FloorOf(shard.part[part % 2], world_.lanes) < clock);
    if (waits && !Has(AsyncBug::kLastBySeals)) continue;
    AsyncState next = emit.from();
    AsyncShard& to = next.core.shard[s];
    if (Has(AsyncBug::kMarksAfterWeights) && shard.torn == 0) {
      to.torn = static_cast<uint8_t>(clock);
      for (int i = 0; i < 2; ++i) to.extra[i] = shard.part[i] & ~kMarksMask;
      emit.Go(std::move(next), "capture weights without marks", message, s);
      continue;
    }
    Part parts[2] = {shard.part[0], shard.part[1]};
    if (Has(AsyncBug::kMarksAfterWeights)) {
      if (shard.torn != clock) continue;
      for (int i = 0; i < 2; ++i) {
        parts[i] = shard.extra[i] | (shard.part[i] & kMarksMask);
        to.extra[i] = 0;
      }
      to.torn = 0;
    }
    to.captured |= static_cast<uint8_t>(1 << clock);
    next.network.push_back(PackFile(m.lineage, clock, s, parts));
    emit.Go(std::move(next), "capture", message, s);
  }
}

void AsyncProtocol::DeliverStart(Emitter& emit, uint64_t message) {
  const AsyncMessage m = UnpackAsync(message);
  for (int s = 0; s < 2; ++s) {
    const AsyncShard& shard = emit.core().shard[s];
    if (shard.lineage >= m.lineage || shard.incarnation != (s == 0 ? m.b : m.c)) continue;
    const AsyncManifest& base = emit.core().coordinator.manifest[m.a];
    AsyncState next = emit.from();
    AsyncShard& to = next.core.shard[s];
    to = AsyncShard();
    to.incarnation = shard.incarnation;
    to.lineage = static_cast<uint8_t>(m.lineage);
    to.since = base.clock;
    for (int i = 0; i < 2; ++i) {
      to.part[i] = base.part[2 * s + i];
      if (Has(AsyncBug::kMarksNotRestored)) to.part[i] &= ~kMarksMask;
    }
    emit.Go(std::move(next), "deliver", message, s);
  }
}

}  // namespace capstan::model
