// The messages that each process would send in a state, and those that no process can use any more.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/model/messages.h"
#include "tests/model/protocol.h"

namespace capstan::model {

int Placed(const Coordinator& c, int lineage, int slot) {
  return 2 * slot + ((c.place[lineage] >> slot) & 1);
}

void Protocol::Sendable(const Core& core, std::vector<uint64_t>* out) const {
  const Coordinator& c = core.coordinator;
  if (c.done != 0 && !world_.has(Bug::kDoneBeforeManifest)) return;
  if (c.done == 0) {
    out->push_back(Pack(Type::kView, c.generation, c.lineage, c.owner[0] | c.owner[1] << 4,
                        c.owner[2] | c.owner[3] << 4));
    const int order = c.order == 2 ? 2 + c.order_step : c.order;
    out->push_back(Pack(Type::kStartLineage, c.lineage, c.base[c.lineage], c.place[c.lineage],
                        order, c.incarnation[c.lineage][0], c.incarnation[c.lineage][1]));
    if (c.order == 1) out->push_back(Pack(Type::kOrder, c.lineage));
    for (int i = 1; i < c.manifests; ++i) {
      if (c.manifest[i].lineage == c.lineage)
        out->push_back(Pack(Type::kFilesTaken, c.lineage, c.manifest[i].version));
    }
  }
  for (int w = 0; w < world_.workers; ++w) SendableByWorker(core, w, out);
  for (int i = 0; i < 4; ++i) SendableByShard(core, i, out);
}

void Protocol::SendableByWorker(const Core& core, int w, std::vector<uint64_t>* out) const {
  const Worker& q = core.worker[w];
  if (q.alive == 0 || q.lineage == 0 || q.whole == 0) return;
  const int version = std::max(q.version[0], q.version[1]);
  const int last = std::min(q.last[0], q.last[1]);
  if (version < world_.steps && version < last) {
    const int source = world_.free_bits ? w | (q.lineage & 7) << 2 : 0;
    for (int block = kRoot; block < kBlocks; ++block) {
      if ((q.pushed >> block & 1) == 0) continue;
      for (const Type type : {Type::kFrame, Type::kSeal}) {
        out->push_back(Pack(type, q.lineage, version, block, 2 * source + q.cut,
                            ex_.WeightsOf(q.weights[0]), ex_.WeightsOf(q.weights[1])));
      }
    }
  }
  if (version == world_.evaluated_version && (q.own & 3) != 0)
    out->push_back(Pack(Type::kEvaluation, q.lineage, version, q.own & 3));
}

void Protocol::SendableByShard(const Core& core, int i, std::vector<uint64_t>* out) const {
  const Shard& n = core.shard[i];
  if (n.lineage == 0) return;
  const int slot = i / 2;
  // U2: with replicas, weights are sent with the state of the optimizer. Any task may need them.
  if (!world_.has(Bug::kSumsAlone) || n.stepped == 0)
    out->push_back(Pack(Type::kWeights, n.lineage, n.version, slot, n.last, n.weights));
  if (world_.replicas && n.stepped != 0) {
    const bool reused = world_.has(Bug::kSumOfReusedRoom) && n.held[kRoot] != 0;
    out->push_back(Pack(Type::kSum, n.lineage, n.version, slot, n.last | n.sum_rate << 4,
                        reused ? n.held[kRoot] : n.sum));
  }
  if (n.held[kRoot] != 0 && n.version < world_.steps && n.version < n.last)
    out->push_back(Pack(Type::kPart, n.lineage, n.version, slot, Finite(n.held[kRoot]) ? 0 : 1));
  if (n.decision != 0 && !world_.has(Bug::kLeadForgetsDecision)) out->push_back(n.decision);
  if (slot == 0 && n.order_step != kNever)
    out->push_back(Pack(Type::kOrderApplied, n.lineage, n.order_step));
  for (const Snapshot& file : n.files) {
    if (file.stage == 2) {
      out->push_back(Pack(Type::kFiles, n.lineage, file.version, slot,
                          file.rate | file.order_step << 4, file.weights));
    }
  }
}

bool Protocol::NobodyTakes(const Core& core, uint64_t bits) const {
  const Message m = Unpack(bits);
  const Coordinator& c = core.coordinator;
  // No process of the slot is at this lineage and at most this step, or can still get there.
  const auto past = [&](int slot, int lineage, int step) {
    for (int i = 2 * slot; i < 2 * slot + 2; ++i) {
      const Shard& n = core.shard[i];
      if (n.lineage > lineage || (n.lineage == lineage && n.version > step)) continue;
      if (n.lineage == lineage) return false;
      if (Placed(c, lineage, slot) == i && c.incarnation[lineage][slot] == n.incarnation)
        return false;
    }
    return true;
  };
  const Worker* const workers = core.worker;
  const auto all_workers = [&](auto&& predicate) {
    return std::all_of(workers, workers + world_.workers,
                       [&](const Worker& q) { return q.alive == 0 || predicate(q); });
  };
  switch (m.type) {
    case Type::kFrame:
    case Type::kDecision:
      return past(0, m.a, m.b) && past(1, m.a, m.b);
    case Type::kSeal:
    case Type::kEvaluation:
    case Type::kPart:
      return past(0, m.a, m.b);
    case Type::kWeights:
    case Type::kSum:
      return all_workers([&](const Worker& q) {
        return q.lineage > m.a ||
               (q.lineage == m.a && q.from[m.c] == q.lineage && q.version[m.c] >= m.b);
      });
    case Type::kView:
      return all_workers([&](const Worker& q) { return q.generation >= m.a; });
    case Type::kStartLineage:
      for (int slot = 0; slot < 2; ++slot) {
        const Shard& n = core.shard[2 * slot + ((m.c >> slot) & 1)];
        if (n.lineage < m.a && n.incarnation == (slot == 0 ? m.e : m.f)) return false;
      }
      return true;
    case Type::kFiles:
      if (m.a < c.lineage) return true;
      for (int i = 1; i < c.manifests; ++i) {
        if (c.manifest[i].lineage == m.a && c.manifest[i].version == m.b) return true;
      }
      return false;
    case Type::kFilesTaken:
      return past(0, m.a, kNever) && past(1, m.a, kNever);
    case Type::kOrder: {
      const Shard& lead = core.shard[Placed(c, m.a, 0)];
      return lead.lineage > m.a ||
             (lead.lineage == m.a && (lead.order_step != kNever || lead.order_pending != 0));
    }
    case Type::kOrderApplied:
      return m.a < c.lineage || c.order == 2;
    case Type::kNone:
      return true;
  }
  return false;
}

void Protocol::Settle(State* state) const {
  std::vector<uint64_t> all;
  all.swap(state->network);
  const Coordinator& c = state->core.coordinator;
  if (c.done != 0 && !world_.has(Bug::kDoneBeforeManifest)) return;
  Sendable(state->core, &all);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  for (const uint64_t message : all) {
    if (keep_all_ || !NobodyTakes(state->core, message)) state->network.push_back(message);
  }
}

std::string ToString(const Message& m) {
  static constexpr const char* kNames[] = {
      "nothing", "frame", "seal",       "weights", "part",          "decision",   "StartLineage",
      "view",    "files", "FilesTaken", "order",   "order applied", "evaluation", "sum"};
  const char* name = kNames[static_cast<int>(m.type)];
  if (m.type == Type::kView) {
    return absl::StrCat("view of generation ", m.a, ", lineage ", m.b, ", owners ", m.c & 15, " ",
                        m.c >> 4, " ", m.d & 15, " ", m.d >> 4);
  }
  if (m.type == Type::kStartLineage)
    return absl::StrCat(name, " ", m.a, " from manifest ", m.b, ", placement ", m.c);
  if (m.type == Type::kDecision) {
    return absl::StrCat(name, " on step ", m.b, " of lineage ", m.a, ", rate ", m.c,
                        (m.d & kApply) != 0 ? ", apply" : ", skip",
                        (m.d & kStop) != 0 ? ", stop" : "",
                        (m.d & kCarriesOrder) != 0 ? ", order" : "",
                        (m.d & kCheckpoint) != 0 ? ", checkpoint" : "");
  }
  return absl::StrCat(name, " of lineage ", m.a, ", step or version ", m.b, ", ", m.c);
}

}  // namespace capstan::model
