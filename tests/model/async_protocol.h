// The asynchronous rules (`dist_async`) and bounded staleness (`max_staleness: k`) as a state
// machine that is small enough for an exhaustive search. exchange/README.md says how the product
// carries them out.
//
// A1  A contribution is the gradient of one lane in one lane step t. Its key is (lineage, lane, t,
//     chunk). No worker is in the key. Each chunk keeps a mark per lane: the next step of the lane.
//     t == mark: the shard applies it and raises the mark in one turn. t < mark: it is past, and
//     nothing changes except that the answer says so. t > mark: a bug.
// A2  The lead keeps marks for seals, too. A lane step is over when every chunk of every shard and
//     the seals have answered with a mark above t. Only then does t + 1 begin, so there are no
//     gaps. A seal may leave before the answers of the chunks.
// A3  A worker that takes a lane up (at the start, at a takeover, in a new lineage) begins at the
//     minimum of the lane's marks over all chunks and the seals. It computes this step again on the
//     weights that it has, if K admits them, and sends all of it. Every answer carries the marks of
//     all lanes, and so does the first message of a shard on a stream.
// A4  If a worker dies, another takes its lanes, whatever its seals say. Its late frames are past,
//     or they count in place of the successor's. If a shard dies, a new lineage begins from the
//     last manifest, and the marks come back with the weights. A frame of another lineage is
//     refused.
// A5  The lead orders a checkpoint when its lowest seal mark reaches the clock F. Each shard
//     captures the weights and marks of all its chunks in one turn. The two files may lie at
//     different marks, which A3 repairs. For the last checkpoint, a shard waits until all its marks
//     are at T.
// A6  If a lane's gradient is not finite, the worker sends a frame that only raises the mark.
// A7  An answer is composed when it can be written, from the weights of that moment.
// K   The floor of weights is their lowest mark over all chunks and lanes. Step t may be computed
//     only on weights whose floor is at least t - k. After a frame of step t, a shard parks the
//     answer until its own floor is at least t + 1 - k. The clock is per lane: neither a join, nor
//     a death, nor a takeover changes it.
// K2  A lane may be unable to begin because its worker's weights are too old. This happens after a
//     takeover and after a stream broke. If a shard with such weights owes the worker no answer for
//     this lane, the worker asks it. The answer is parked like one to a frame of step t - 1.
//     Without this rule the job hangs (kNoAsk). To ask once is not enough, because the answer may
//     raise t (kAskOnlyOnce).
//
// A world has two shards with one to three chunks, up to three workers, up to three lanes, and a
// coordinator. Shard 0 is the lead.
//
// Streams are reliable until they break: a frame arrives once, and frames arrive in any order. If a
// stream breaks or its worker dies, the answers are lost, and the frames become strays. A stray may
// arrive at any later time, any number of times, or never. Its arrival is a fault, so that the end
// of the job never depends on it. Coordinator, lead and shards repeat all other messages from their
// state. These may arrive at any later time.
//
// Some states are left out because they show nothing new. Marks only rise, and a worker that hears
// an answer early may still wait before it acts.
//   - A seal is counted and answered in one turn. So are the first message of a stream and K2's
//     request. A lost answer is a stray that is counted, or a stream that breaks first.
//   - A chunk's answer is heard as soon as it is not parked, except in worlds with `late_answers`.
//   - Of the lanes that it does not own, a worker keeps only the floor. When it takes a lane up, it
//     may have heard any mark from there to the present one.
//
// Left out: arithmetic, state planes and rates; evaluation; changes of k; the sizes of buffers;
// A7's swap of a buffer instead of a write in place; two captures of a shard in one checkpoint. The
// synchronous model (protocol.h) has more of the coordinator: shards that are replaced while they
// live, refused manifests, orders, and views that are told before they are recorded.
#ifndef CAPSTAN_TESTS_MODEL_ASYNC_PROTOCOL_H_
#define CAPSTAN_TESTS_MODEL_ASYNC_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "tests/model/async_state.h"
#include "tests/model/searcher.h"

namespace capstan::model {

inline constexpr int kUnbounded = 9;  // for k

// The removal or the change of one rule.
enum class AsyncBug : uint8_t {
  kNone,
  kNoDedupe,              // A1: a step below the mark is applied again
  kKeyWithWorker,         // A1: the key has the worker
  kMarksPerShard,         // A1: the marks of a shard's first chunk speak for all its chunks
  kPastNotAnswered,       // A1: a frame that is past gets no answer
  kNextAfterAnyAnswer,    // A2: one chunk's answer ends a step
  kResumeHighest,         // A3: begins at the highest mark of the chunks
  kResumeIgnoresSeal,     // A3: begins at the lowest mark of the chunks
  kResumeBySealOnly,      // A3: begins at the mark of the seals
  kNoResend,              // A3: a new stream sends nothing again
  kNoFence,               // A4: a frame of an older lineage is accepted
  kTakeoverBySeals,       // A4: only lanes without their last seal are taken over
  kMarksSurviveLineage,   // A4: a worker keeps the marks that it knows
  kMarksNotRestored,      // A4: the marks begin at 0 beside restored weights
  kManifestOfAnyLineage,  // A5: files are matched only by their clock
  kMarksAfterWeights,     // A5: marks are captured in a later turn than the weights
  kLastBySeals,           // A5: the last checkpoint waits only for the seals
  kSkipRaisesNoMark,      // A6: a frame that is not finite is dropped
  kComposedWhenParked,    // A7: a parked answer has the weights of the moment of parking
  kGateBySeals,           // K: the gate is the lowest seal mark, not the floor of the weights
  kClockPerWorker,        // K: the clock is that of a worker's fastest lane
  kParkedIsDropped,       // K: an answer that would be parked is forgotten
  kParkedTooLong,         // K: parked until the floor is t + 2 - k
  kOneTooStale,           // K: gate and parking admit a staleness of k + 1
  kNoAsk,                 // K2: no worker asks
  kAskOnlyOnce,           // K2: a lane asks once in a lineage
};

// A small world, and the faults that it allows.
struct AsyncWorld {
  int lanes = 2;
  int workers = 2;
  bool spare = false;         // the last worker has no lane at first
  int steps = 2;              // T
  int chunks = 2;             // the third one is at shard 1
  int k = kUnbounded;         // max_staleness
  unsigned checkpoints = 0;   // bit F: ordered at clock F, in addition to T
  bool late_answers = false;  // otherwise an answer comes as soon as it is not parked
  bool skip = false;          // step 0 of lane 0 is not finite
  // Faults. Each happens at most this often.
  int deaths = 0;      // a worker ends; one always stays
  int suspicions = 0;  // lanes are taken from a living worker
  int breaks = 0;      // a stream between a worker and a shard breaks
  int crashes = 0;     // a shard loses its memory
  AsyncBug bug = AsyncBug::kNone;

  bool has(AsyncBug one) const { return bug == one; }
};

class AsyncProtocol {
 public:
  explicit AsyncProtocol(const AsyncWorld& world) : world_(world) {}

  AsyncState Initial();
  // Has the transition in words, if `describe` was given; whether it is a fault; and the invariant
  // that it breaks, or an empty text.
  struct Step {
    AsyncState next;
    std::string what;
    bool fault = false;
    std::string violation;
  };
  using Visit = std::function<void(Step&&)>;
  void Successors(const AsyncState& state, bool describe, const Visit& visit);
  bool Finished(const AsyncState& state) const { return state.core.coordinator.done != 0; }

 private:
  class Emitter;

  // async_network.cc: the messages that are repeated, and those that no process can use.
  void Settle(AsyncState* state) const;
  bool Useless(const AsyncCore& core, uint64_t message) const;

  // async_worker.cc
  void DeliverView(Emitter& emit, uint64_t message);
  void OpenStreams(Emitter& emit);
  void Ask(Emitter& emit);
  void BeginSteps(Emitter& emit);
  bool Gate(const AsyncCore& core, const AsyncWorker& worker, int step, int shard) const;
  int Resume(const AsyncWorker& worker, int lane, bool taken_up) const;
  void Hear(AsyncWorker* worker, int part, Part marks) const;
  void Forget(AsyncWorker* worker) const;
  void TakeUp(Emitter& emit, const AsyncState& state, uint64_t message, int w, int gained,
              int part);
  int WeightsFloor(const AsyncWorker& worker) const;

  // async_shard.cc
  void DeliverFrame(Emitter& emit, uint64_t message);
  void Count(AsyncShard* shard, const AsyncMessage& frame);
  void Answer(Emitter& emit);
  void AnswerAtOnce(AsyncCore* core);
  void AnswerOne(AsyncCore* core, int worker, int part, int lane);
  bool CanAnswer(const AsyncCore& core, int worker, int part, int lane) const;
  void Capture(Emitter& emit, uint64_t message);
  void DeliverStart(Emitter& emit, uint64_t message);
  Part Answered(const AsyncShard& shard, int part) const;
  int LowestFloor(int step) const;
  void Owe(AsyncShard* shard, int worker, int part, int lane, int step) const;
  bool Parked(const AsyncCore& core, const AsyncShard& shard, int s, int step) const;
  void CheckPart(Part part, int index, const char* rule);

  // async_protocol.cc: the coordinator and the faults.
  void Commit(Emitter& emit);
  void TakeOver(Emitter& emit);
  void BeginLineage(Emitter& emit);
  void Faults(Emitter& emit);

  bool Has(AsyncBug bug) const { return world_.has(bug); }
  bool Bounded() const { return world_.k != kUnbounded; }
  bool Exists(int part) const { return part <= world_.chunks; }
  bool IsChunk(int part) const { return part != kSealPart && Exists(part); }
  // The floor of one part's marks for staleness.
  int ClockOf(const AsyncCore& core, Part part) const;
  void Violate(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }

  const AsyncWorld world_;
  std::string violation_;  // of the present transition
};

// Searches a world. A violation begins with the name of a rule:
//   A1   a lane step is counted exactly once in a chunk and in the seals: marks and weights agree
//   A2   a frame is never ahead of its mark, so that neither a takeover nor a lineage leaves a gap
//   A4   a contribution counts only in its own lineage
//   A5   a manifest has files of one lineage, its marks and weights agree, and at the end all marks
//        are at T
//   A7   an answer to step t has a floor of at least t - k
//   K    no contribution is staler than k: t - floor of its weights <= k
//   END  from every state the job can end without a fault
// `max_states`: after this many states the search ends, and `complete` is false.
Verdict SearchAsync(const AsyncWorld& world, size_t max_states);

}  // namespace capstan::model

#endif  // CAPSTAN_TESTS_MODEL_ASYNC_PROTOCOL_H_
