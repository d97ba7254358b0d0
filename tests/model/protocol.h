// The synchronous training protocol as a state machine, small enough to be searched exhaustively.
//
// Two shards of one chunk each (shard 0 is the lead), up to three workers, up to four lanes, a
// coordinator. Rules and names are those of docs/architecture.md; what the code does is followed:
// seals leave beside the last frames, lanes are issued again while the lead lacks a seal or any
// shard a chunk, the decision is repeated until every shard shows its version.
//
// The network is a set: a message once sent may come at any later time, any number of times, or
// never. Loss, repetition, reordering, delay and zombies are that one rule. Whoever would repeat a
// message by what he still knows can send it; the fault `wipe` loses everything else. The
// coordinator acts on its durable record and on repeated reports alone, so its crash is no event.
#ifndef CAPSTAN_TESTS_MODEL_PROTOCOL_H_
#define CAPSTAN_TESTS_MODEL_PROTOCOL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/model/expressions.h"

namespace capstan::model {

inline constexpr int kMaxWorkers = 3;
inline constexpr int kMaxLanes = 4;
inline constexpr int kMaxSteps = 3;
inline constexpr int kMaxLineages = 8;
inline constexpr int kMaxManifests = 10;
inline constexpr uint8_t kNever = 15;  // of a step or version

enum class Order : uint8_t { kNone, kRate, kStop };

// One rule taken away.
enum class Bug : uint8_t {
  kNone,
  kNoDedupe,                 // R6: a node that is held, or covered, is added again
  kNoAncestorCheck,          // R6: only the node itself is looked for
  kNoDiscard,                // R6: held descendants stay beside their ancestor
  kArrivalOrder,             // R1: one running sum
  kNoFence,                  // frames of an older lineage are accepted
  kDecisionOfAnyLineage,     // R7
  kPartOfAnyLineage,         // R7
  kSealOfAnyLineage,         // R7
  kSealsSurviveLineage,      // the lead keeps its seals over a StartLineage
  kWeightsSurviveLineage,    // R7: a worker keeps its weights over a change of lineage
  kPartialVersion,           // R8: frames of s+1 before all of s+1
  kDecisionPerShard,         // R7: each shard judges its own sum
  kLeadForgetsDecision,      // announced once, not repeated
  kReissueBySealsOnly,       // what a shard lacks is not looked at
  kSuccessorSkipsSealed,     // a successor computes only lanes without a seal
  kNonFiniteRefused,         // R6: such a chunk is not held
  kEvaluationNotAwaited,     // the decision of v does not wait for the evaluation of v
  kSameLineageAfterCrash,    // a shard without memory comes back into its lineage
  kStartLineageTwice,        // StartLineage is not idempotent
  kAnnouncedBeforeDurable,   // a view is told before it is recorded
  kManifestByHighestStep,    // the base is the highest step in the folder
  kManifestOfTwoLineages,    // files are matched by version alone
  kCommitOfOldLineage,       // files of an older lineage become a manifest
  kDoneBeforeManifest,       // SUCCEEDED when all shards have version T
  kOrderAtAnotherStep,       // a journaled order is replayed wherever the lead likes
  kOrderReportOfOldLineage,  // such a report is journaled
};

// A small world and the faults that it allows.
struct World {
  int lanes = 3;
  int workers = 2;
  int steps = 2;               // T
  bool interleaved = false;    // owners by turns, not in runs
  unsigned checkpoints = 0;    // bit v: version v is saved, besides T
  int nonfinite_step = -1;     // lane 1 is not finite there, in the chunk of shard 1 and its seal
  int evaluated_version = -1;  // in two blocks, of the owners of lanes 0 and 1
  Order order = Order::kNone;  // that a person gives at some time
  bool free_bits = false;      // D0: a lane's bits depend on who computes it
  // Faults, each at most so often.
  int deaths = 0;        // a worker ends; one stays
  int suspicions = 0;    // lanes are taken from a worker that lives
  int cuts = 0;          // a worker never reaches shard 1 again
  int crashes = 0;       // a shard loses its memory
  int restarts = 0;      // StartLineage although nobody died
  bool replace = false;  // ... also with another process in the place of one that lives on
  int refusals = 0;      // StartLineage from an older manifest: the newest cannot be read
  int wipes = 0;         // everything in flight is lost that nobody would send again
  Bug bug = Bug::kNone;

  bool has(Bug one) const { return bug == one; }
};

// ---- State: plain bytes without padding, hashed as such ----

struct Snapshot {
  uint8_t stage = 0;  // 0: none; 1: ordered; 2: written, to be reported
  uint8_t version = 0;
  uint8_t rate = 0;
  uint8_t order_step = 0;
  Id weights = 0;
};

struct Shard {  // a process; slot = its part of the chunks
  uint8_t incarnation = 0;
  uint8_t lineage = 0;  // 0: knows none
  uint8_t version = 0;
  uint8_t last = kNever;  // the version with stop, once known
  Id weights = 0;
  Id held[kNodes] = {};
  Snapshot files[2];  // [0]: of a running job; [1]: of the last version
  // The lead's.
  Id seals[kNodes] = {};
  uint8_t parts = 0;            // mask of shards
  uint8_t bad_parts = 0;        // likewise: not finite
  uint8_t blocks = 0;           // mask of evaluated blocks
  uint8_t rate = 0;             // orders for the rate that are in force
  uint8_t order_step = kNever;  // the step whose decision carried the order
  uint8_t order_pending = 0;    // 1: at any step; 2: at order_at
  uint8_t order_at = 0;
  uint8_t spare[4] = {};
  uint8_t decisions[kMaxSteps] = {};  // by step, for the invariants; 0: none
  uint64_t decision = 0;              // the last, as it was announced
};

struct Worker {
  uint8_t alive = 0;
  uint8_t generation = 0;
  uint8_t lineage = 0;
  uint8_t own = 0;     // mask of lanes
  uint8_t taken = 0;   // lanes taken up at the version held
  uint8_t pushed = 0;  // mask of nodes that are being sent
  uint8_t cut = 0;
  uint8_t whole = 0;        // its parts are of one version
  uint8_t from[2] = {};     // lineage of each part; 0: it has none
  uint8_t version[2] = {};  // of each part
  uint8_t last[2] = {kNever, kNever};
  uint8_t spare[2] = {};
  Id weights[2] = {};
};

struct Manifest {
  uint8_t lineage = 0;
  uint8_t version = 0;
  uint8_t rate = 0;
  uint8_t order_step = kNever;
  Id weights[2] = {};
};

struct Coordinator {  // durable
  uint8_t generation = 1;
  uint8_t lineage = 1;
  uint8_t lost = 0;   // mask of workers that own nothing any more
  uint8_t order = 0;  // 1: given; 2: journaled
  uint8_t order_step = 0;
  uint8_t manifests = 0;
  uint8_t done = 0;
  uint8_t spare = 0;
  uint8_t owner[kMaxLanes] = {};
  uint8_t place[kMaxLineages] = {};  // by lineage: bit s, which process holds slot s
  uint8_t base[kMaxLineages] = {};   // by lineage: a manifest
  uint8_t incarnation[kMaxLineages][2] = {};
  Manifest manifest[kMaxManifests];
};

struct Budget {
  uint8_t deaths = 0, suspicions = 0, cuts = 0, crashes = 0, restarts = 0, refusals = 0, wipes = 0;
  uint8_t orders = 0;
};

struct Core {
  Shard shard[4];  // 2 * slot + process
  Worker worker[kMaxWorkers];
  Coordinator coordinator;
  Budget budget;
};

struct State {
  Core core;
  std::vector<uint64_t> network;  // sorted
};

// ---- The machine ----

class Protocol {
 public:
  explicit Protocol(const World& world);

  State Initial();
  // What the transition does in words, where `describe` was asked for; whether it is a fault; the
  // invariant that it breaks, or empty.
  struct Step {
    State next;
    std::string what;
    bool fault = false;
    std::string violation;
  };
  using Visit = std::function<void(Step&&)>;
  void Successors(const State& state, bool describe, const Visit& visit);

  bool Finished(const State& state) const;
  const Expressions& expressions() const { return ex_; }

 private:
  class Emitter;

  // protocol_send.cc: what each would say, and which messages nobody can take any more.
  void Sendable(const Core& core, std::vector<uint64_t>* out) const;
  void SendableByWorker(const Core& core, int w, std::vector<uint64_t>* out) const;
  void SendableByShard(const Core& core, int i, std::vector<uint64_t>* out) const;
  bool NobodyTakes(const Core& core, uint64_t message) const;
  void Settle(State* state) const;

  // protocol_receive.cc
  void Deliver(Emitter& emit, uint64_t message);
  void DeliverFrame(Emitter& emit, uint64_t message);
  void DeliverToLead(Emitter& emit, uint64_t message);
  void DeliverWeights(Emitter& emit, uint64_t message);
  void DeliverView(Emitter& emit, uint64_t message);
  void DeliverStartLineage(Emitter& emit, uint64_t message);
  void DeliverDecision(Emitter& emit, uint64_t message);
  void TakeWeights(Worker* worker) const;

  // protocol.cc
  void Decide(Emitter& emit);
  void WriteFiles(Emitter& emit);
  void Commit(Emitter& emit);
  void Reassign(Emitter& emit);
  void BeginLineages(Emitter& emit);
  void Faults(Emitter& emit);
  void StartLineage(Emitter& emit, int moved_slots, int base, bool fault);
  int NewestManifest(const Coordinator& c) const;
  bool Lacks(const Core& core, int lane) const;

  // protocol_sum.cc
  Id NodeValue(int node, int part, int step, Id weights0, Id weights1, int source);
  bool Hold(Id* held, int node, Id value, bool is_seal);
  void Publish(Core& core, int shard, uint64_t decision);
  void CheckSum(const Core& core, const Shard& shard, int slot, Id root);
  void CheckSeals(const Shard& lead);
  void CheckManifest(const Coordinator& c, const Manifest& manifest);
  Id Expected(int part, int version, int order_step);
  void Violate(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }

  bool Finite(Id id) const { return ex_.at(id).finite; }
  int AllLanes() const { return (1 << world_.lanes) - 1; }

  const World world_;
  const bool keep_all_;  // messages that the rules would refuse matter too
  Expressions ex_;
  std::map<int, Id> expected_;
  std::string violation_;  // of the transition being made
};

// Which process holds a slot in a lineage.
int Placed(const Coordinator& c, int lineage, int slot);
// Whether the node of one lane, or one above it, is held.
bool Covered(const Id* held, int node);

}  // namespace capstan::model

#endif  // CAPSTAN_TESTS_MODEL_PROTOCOL_H_
