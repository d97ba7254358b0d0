// The synchronous training protocol as a state machine that is small enough for an exhaustive
// search.
//
// It has two shards of one chunk each (shard 0 is the lead), up to three workers, up to four lanes,
// and a coordinator. Rules and names are those of docs/architecture.md. The model follows the code:
// seals leave beside the last frames, lanes are issued again while the lead lacks a seal or a shard
// lacks a chunk, and the decision is repeated until every shard shows its version.
//
// The network is a set: a message, once sent, may arrive at any later time, any number of times, or
// never. This one rule covers loss, repetition, reordering, delay and zombies. A process that would
// repeat a message can send it again from its own state. The fault `wipe` loses all other messages.
// The coordinator acts only on its durable record and on repeated reports, so its crash is no
// event.
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
inline constexpr uint8_t kNever = 15;  // for a step or a version

// kMove: the lineage ends as with kStop, and the next one has other processes in World::moved.
enum class Order : uint8_t { kNone, kRate, kStop, kMove };

// The removal of one rule.
enum class Bug : uint8_t {
  kNone,
  kNoDedupe,                 // R6: a held or covered block is added again
  kNoAncestorCheck,          // R6: only the block itself is checked
  kNoDiscard,                // R6: held descendants stay when their ancestor arrives
  kArrivalOrder,             // R1: there is one running sum
  kNoFence,                  // frames of an older lineage are accepted
  kDecisionOfAnyLineage,     // R7
  kPartOfAnyLineage,         // R7
  kSealOfAnyLineage,         // R7
  kSealsSurviveLineage,      // the lead keeps its seals at a StartLineage
  kWeightsSurviveLineage,    // R7: a worker keeps its weights at a change of lineage
  kPartialVersion,           // R8: frames of s+1 leave before all of s+1 is there
  kDecisionPerShard,         // R7: each shard decides by its own sum
  kLeadForgetsDecision,      // a decision is sent once and not repeated
  kReissueBySealsOnly,       // the chunks that a shard lacks are ignored
  kSuccessorSkipsSealed,     // a successor computes only lanes without a seal
  kNonFiniteRefused,         // R6: such a chunk is not stored
  kEvaluationNotAwaited,     // the decision of v does not wait for the evaluation of v
  kSameLineageAfterCrash,    // a shard without memory returns to its lineage
  kStartLineageTwice,        // StartLineage is not idempotent
  kAnnouncedBeforeDurable,   // a view is told before it is recorded
  kManifestByHighestStep,    // continues from the highest step in the folder
  kManifestOfTwoLineages,    // files are matched only by version
  kCommitOfOldLineage,       // files of an older lineage become a manifest
  kDoneBeforeManifest,       // SUCCEEDED when all shards have version T
  kOrderAtAnotherStep,       // a journaled order is replayed at any step
  kOrderReportOfOldLineage,  // such a report is journaled
  kSumOnAnyVersion,          // U3: a task applies a sum to whatever version it has
  kSumTwice,                 // U3: a sum that arrives again is applied again
  kSumOfReusedRoom,          // U2: a sum is read when it is sent, and the room has the next step's
  kWholeWithoutState,        // U2: a version comes without the state of the optimizer
  kMovedBeforeSaved,         // a move begins its lineage as soon as the one before has ended
  kMovedWithOneFile,         // ... as soon as the lead has written its file
  kSumsAlone,                // U2: a shard sends a whole version only when its lineage begins
};

// A small world, and the faults that it allows.
struct World {
  int lanes = 3;
  int workers = 2;
  int steps = 2;               // T
  bool interleaved = false;    // owners by turns, not in runs
  unsigned checkpoints = 0;    // bit v: version v is saved, in addition to T
  int nonfinite_step = -1;     // lane 1 is not finite there, in the chunk of shard 1 and its seal
  int evaluated_version = -1;  // in two blocks, of the owners of lanes 0 and 1
  Order order = Order::kNone;  // that a person gives at any time
  int moved = 0;               // for kMove: bit s, the shard in slot s goes to another process
  bool free_bits = false;      // D0: a lane's bits depend on who computes it
  bool replicas = false;       // update_on_kvstore: false; workers update, too
  // Faults. Each happens at most this often.
  int deaths = 0;        // a worker ends; one always stays
  int suspicions = 0;    // lanes are taken from a living worker
  int cuts = 0;          // a worker never reaches shard 1 again
  int crashes = 0;       // a shard loses its memory
  int restarts = 0;      // StartLineage although no process died
  bool replace = false;  // ... also with another process in place of a living one
  int refusals = 0;      // StartLineage from an older manifest, as the newest cannot be read
  int wipes = 0;         // all messages in flight are lost that nobody would send again
  Bug bug = Bug::kNone;

  bool has(Bug one) const { return bug == one; }
};

// ---- State: plain bytes without padding, which are hashed ----

struct Snapshot {
  uint8_t stage = 0;  // 0: none; 1: ordered; 2: written, not yet reported
  uint8_t version = 0;
  uint8_t rate = 0;
  uint8_t order_step = 0;
  Id weights = 0;
};

struct Shard {  // a process; slot = its part of the chunks
  uint8_t incarnation = 0;
  uint8_t lineage = 0;  // 0: none
  uint8_t version = 0;
  uint8_t last = kNever;  // the version with stop, once it is known
  Id weights = 0;
  Id held[kBlocks] = {};
  Snapshot files[2];  // [0]: of a running job; [1]: of the last version
  // Only for the lead.
  Id seals[kBlocks] = {};
  uint8_t parts = 0;            // mask of shards
  uint8_t bad_parts = 0;        // likewise, not finite
  uint8_t blocks = 0;           // mask of evaluated blocks
  uint8_t rate = 0;             // orders for the rate that are in effect
  uint8_t order_step = kNever;  // the step whose decision carried the order
  uint8_t order_pending = 0;    // 1: at any step; 2: at order_at
  uint8_t order_at = 0;
  // With replicas, of all shards: the sum of the step before `version`, 0 if that was skipped, and
  // its rate. `stepped`: there was such a step in this lineage.
  uint8_t sum_rate = 0;
  Id sum = 0;
  uint8_t stepped = 0;
  uint8_t decisions[kMaxSteps] = {};  // by step, for the invariants; 0: none
  uint64_t decision = 0;              // the last, as it was sent
};

struct Worker {
  uint8_t alive = 0;
  uint8_t generation = 0;
  uint8_t lineage = 0;
  uint8_t own = 0;     // mask of lanes
  uint8_t taken = 0;   // lanes taken up at the present version
  uint8_t pushed = 0;  // mask of blocks being sent
  uint8_t cut = 0;
  uint8_t whole = 0;        // both its parts are of one version
  uint8_t from[2] = {};     // lineage of each part; 0: no part
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
  uint8_t lost = 0;   // mask of workers that own no lane any more
  uint8_t order = 0;  // 1: given; 2: journaled
  uint8_t order_step = 0;
  uint8_t manifests = 0;
  uint8_t done = 0;
  uint8_t moved = 0;  // the lineage that the move took effect with; 0: not yet
  uint8_t owner[kMaxLanes] = {};
  uint8_t place[kMaxLineages] = {};  // by lineage: bit s is the process in slot s
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
  // Has the transition in words, if `describe` was given; whether it is a fault; and the invariant
  // that it breaks, or an empty text.
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

  // protocol_send.cc: the messages that each process would send, and those that no process can use
  // now.
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
  void DeliverSum(Emitter& emit, uint64_t message);
  void DeliverView(Emitter& emit, uint64_t message);
  void DeliverStartLineage(Emitter& emit, uint64_t message);
  void DeliverDecision(Emitter& emit, uint64_t message);
  void TakeWeights(Worker* worker) const;

  // protocol.cc
  void Decide(Emitter& emit);
  void WriteFiles(Emitter& emit);
  void Commit(Emitter& emit);
  void CommitOneFile(Emitter& emit);
  void Reassign(Emitter& emit);
  void BeginLineages(Emitter& emit);
  void Faults(Emitter& emit);
  void StartLineage(Emitter& emit, int moved_slots, int base, bool fault);
  bool MoveIsDue(const Coordinator& c) const;
  int EndOfLineage(const Core& core) const;
  int NewestManifest(const Coordinator& c) const;
  bool Lacks(const Core& core, int lane) const;

  // protocol_sum.cc
  Id BlockValue(int block, int part, int step, Id weights0, Id weights1, int source);
  bool Hold(Id* held, int block, Id value, bool is_seal);
  void Publish(Core& core, int shard, uint64_t decision);
  void CheckSum(const Core& core, const Shard& shard, int slot, Id root);
  void CheckSeals(const Shard& lead);
  void CheckManifest(const Coordinator& c, const Manifest& manifest);
  void CheckReplica(const Core& core, const Worker& worker, int part);
  Id Expected(int part, int version, int order_step);
  void Violate(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }

  bool Finite(Id id) const { return ex_.at(id).finite; }
  int AllLanes() const { return (1 << world_.lanes) - 1; }

  const World world_;
  const bool keep_all_;  // also messages that the rules would refuse matter
  Expressions ex_;
  std::map<int, Id> expected_;
  std::string violation_;  // of the present transition
};

// The process in a slot in a lineage.
int Placed(const Coordinator& c, int lineage, int slot);
// Whether the block of one lane, or a block above it, is held.
bool Covered(const Id* held, int block);

}  // namespace capstan::model

#endif  // CAPSTAN_TESTS_MODEL_PROTOCOL_H_
