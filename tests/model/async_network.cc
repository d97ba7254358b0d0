// The messages of the asynchronous model: how they are packed, which are repeated, and which no
// process can use any more.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/model/async_protocol.h"

namespace capstan::model {
namespace {

constexpr uint64_t kPartMask = (uint64_t{1} << 26) - 1;

uint64_t Shifted(int value, int shift) { return static_cast<uint64_t>(value) << shift; }

}  // namespace

uint64_t PackAsync(AsyncType type, int lineage, int a, int b, int c, int d, int e, int f) {
  return Shifted(static_cast<int>(type), 60) | Shifted(lineage, 57) | Shifted(a, 40) |
         Shifted(b, 32) | Shifted(c, 24) | Shifted(d, 16) | Shifted(e, 8) | Shifted(f, 0);
}

uint64_t PackFile(int lineage, int clock, int shard, const Part (&part)[2]) {
  return Shifted(static_cast<int>(AsyncType::kFile), 60) | Shifted(lineage, 57) |
         Shifted(clock, 55) | Shifted(shard, 54) | uint64_t{part[1]} << 26 | part[0];
}

AsyncMessage UnpackAsync(uint64_t bits) {
  const auto field = [bits](int shift, uint64_t mask) {
    return static_cast<int>(bits >> shift & mask);
  };
  AsyncMessage m;
  m.type = static_cast<AsyncType>(field(60, 15));
  m.lineage = field(57, 7);
  if (m.type == AsyncType::kFile) {
    m.a = field(55, 3);
    m.b = field(54, 1);
    m.part[0] = static_cast<Part>(bits & kPartMask);
    m.part[1] = static_cast<Part>(bits >> 26 & kPartMask);
    return m;
  }
  m.a = field(40, 255);
  m.b = field(32, 255);
  m.c = field(24, 255);
  m.d = field(16, 255);
  m.e = field(8, 255);
  m.f = field(0, 255);
  return m;
}

bool AsyncProtocol::Useless(const AsyncCore& core, uint64_t bits) const {
  const AsyncMessage m = UnpackAsync(bits);
  const AsyncCoordinator& c = core.coordinator;
  switch (m.type) {
    case AsyncType::kFrame: {
      if (Has(AsyncBug::kNoFence)) return false;
      const AsyncShard& shard = core.shard[ShardOf(m.a)];
      // A stream is open only within one lineage, to which a crashed shard does not return.
      if (shard.lineage != m.lineage) return true;
      if (m.c >= MarkOf(shard.part[m.a % 2], m.b)) return false;
      if (Has(AsyncBug::kNoDedupe) || Has(AsyncBug::kKeyWithWorker)) return false;
      const AsyncWorker& q = core.worker[m.e];
      const bool answer_awaited = q.alive != 0 && q.lineage == m.lineage &&
                                  q.begun[m.b] == m.c + 1 && MarkOf(q.known[m.a], m.b) <= m.c;
      return m.f != 0 || !answer_awaited;
    }
    case AsyncType::kView:
      return std::all_of(core.worker, core.worker + world_.workers,
                         [&](const AsyncWorker& q) { return q.alive == 0 || q.generation >= m.a; });
    case AsyncType::kStart:
      for (int s = 0; s < 2; ++s) {
        if (core.shard[s].lineage < m.lineage && core.shard[s].incarnation == (s == 0 ? m.b : m.c))
          return false;
      }
      return true;
    case AsyncType::kCapture:
      return std::all_of(core.shard, core.shard + 2, [&](const AsyncShard& shard) {
        return shard.lineage != m.lineage || (shard.captured >> m.a & 1) != 0;
      });
    case AsyncType::kFile:
      if (Has(AsyncBug::kManifestOfAnyLineage)) return false;
      if (m.lineage < c.lineage) return true;
      return std::any_of(c.manifest + 1, c.manifest + c.manifests, [&](const AsyncManifest& known) {
        return known.lineage == m.lineage && known.clock == m.a;
      });
    case AsyncType::kNone:
      return true;
  }
  return true;
}

void AsyncProtocol::Settle(AsyncState* state) const {
  std::vector<uint64_t> all;
  all.swap(state->network);
  const AsyncCore& core = state->core;
  const AsyncCoordinator& c = core.coordinator;
  if (c.done != 0) return;
  all.push_back(
      PackAsync(AsyncType::kView, c.lineage, c.generation, c.owner[0], c.owner[1], c.owner[2]));
  all.push_back(
      PackAsync(AsyncType::kStart, c.lineage, c.base, c.incarnation[0], c.incarnation[1]));
  const AsyncShard& lead = core.shard[0];
  if (lead.lineage != 0) {
    const int reached = FloorOf(lead.part[kSealPart], world_.lanes);
    for (int clock = 1; clock <= reached; ++clock) {
      const bool wanted = clock > lead.since && (world_.checkpoints >> clock & 1) != 0;
      if (wanted || clock == world_.steps)
        all.push_back(PackAsync(AsyncType::kCapture, lead.lineage, clock));
    }
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  for (const uint64_t message : all) {
    if (!Useless(core, message)) state->network.push_back(message);
  }
}

std::string ToString(const AsyncMessage& m) {
  const std::string of = absl::StrCat(" of lineage ", m.lineage);
  switch (m.type) {
    case AsyncType::kFrame:
      return absl::StrCat(m.f != 0 ? "stray " : "", "frame", of, " from worker ", m.e, ", lane ",
                          m.b, ", step ", m.c, ", part ", m.a, ", floor ", m.d);
    case AsyncType::kView:
      return absl::StrCat("view ", m.a, of, ", owners ", m.b, " ", m.c, " ", m.d);
    case AsyncType::kStart:
      return absl::StrCat("StartLineage ", m.lineage, " from manifest ", m.a);
    case AsyncType::kCapture:
      return absl::StrCat("checkpoint", of, " at clock ", m.a);
    case AsyncType::kFile:
      return absl::StrCat("file", of, " at clock ", m.a, " from shard ", m.b);
    case AsyncType::kNone:
      break;
  }
  return "nothing";
}

}  // namespace capstan::model
