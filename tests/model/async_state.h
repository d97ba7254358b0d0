// The state of the asynchronous model: plain bytes without padding, and 64-bit messages.
//
// A part is a chunk of weights or the seals. It fits in 26 bits: the marks, two bits per lane, and
// how often each lane step was counted, two bits per lane and step. The counts stand for the
// weights: two equal histories of counts are not told apart, as asynchronous weights depend on the
// order of arrival anyway.
#ifndef CAPSTAN_TESTS_MODEL_ASYNC_STATE_H_
#define CAPSTAN_TESTS_MODEL_ASYNC_STATE_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace capstan::model {

inline constexpr int kAsyncWorkers = 3;
inline constexpr int kAsyncLanes = 3;
inline constexpr int kAsyncSteps = 3;
inline constexpr int kAsyncManifests = 6;

// Part 2s + i is part i of shard s. The seals are at the lead, which is shard 0.
inline constexpr int kParts = 4;
inline constexpr int kSealPart = 1;
constexpr int ShardOf(int part) { return part / 2; }

// ---- Parts ----

using Part = uint32_t;
inline constexpr Part kMarksMask = 63;

constexpr int MarkOf(Part part, int lane) { return static_cast<int>(part >> (2 * lane) & 3); }
constexpr Part WithMark(Part part, int lane, int mark) {
  return (part & ~(Part{3} << (2 * lane))) | static_cast<Part>(mark) << (2 * lane);
}
constexpr int CountShift(int lane, int step) { return 8 + 2 * (kAsyncSteps * lane + step); }
constexpr int CountOf(Part part, int lane, int step) {
  return static_cast<int>(part >> CountShift(lane, step) & 3);
}
constexpr Part Counted(Part part, int lane, int step) {
  return part + (CountOf(part, lane, step) < 3 ? Part{1} << CountShift(lane, step) : 0);
}
constexpr int FloorOf(Part part, int lanes) {
  int floor = MarkOf(part, 0);
  for (int lane = 1; lane < lanes; ++lane) floor = std::min(floor, MarkOf(part, lane));
  return floor;
}
// The higher mark of each lane.
constexpr Part MaxMarks(Part a, Part b) {
  Part marks = 0;
  for (int lane = 0; lane < kAsyncLanes; ++lane)
    marks = WithMark(marks, lane, std::max(MarkOf(a, lane), MarkOf(b, lane)));
  return marks;
}

// ---- Processes ----

struct AsyncShard {
  uint8_t incarnation = 0;
  uint8_t lineage = 0;   // 0: it has no memory
  uint8_t captured = 0;  // mask of clocks
  uint8_t since = 0;     // the clock of the manifest that the lineage began from
  Part part[2] = {};
  Part extra[2] = {};  // what a bug keeps beside each part
  // By worker, part and lane, 1 + n: an answer is owed for step n, which may be parked.
  uint8_t owed[kAsyncWorkers][2][kAsyncLanes] = {};
  uint8_t parked_marks[kAsyncWorkers][2][kAsyncLanes] = {};  // only for kComposedWhenParked
  uint8_t torn = 0;  // only for kMarksAfterWeights: the clock of a half-captured file
  uint8_t spare[7] = {};
};

struct AsyncWorker {
  uint8_t alive = 0;
  uint8_t generation = 0;
  uint8_t lineage = 0;
  uint8_t own = 0;                  // mask of lanes
  uint8_t open = 0;                 // mask of shards to which it has a stream
  uint8_t heard = 0;                // mask of shards whose marks it has
  uint8_t asked = 0;                // mask of lanes; only for kAskOnlyOnce
  uint8_t known[kParts] = {};       // the marks of each part, as it knows them
  uint8_t begun[kAsyncLanes] = {};  // 1 + the step that is in flight
  uint8_t floor[kAsyncLanes] = {};  // the floor of the weights of that step
  uint8_t spare[7] = {};
};

struct AsyncManifest {
  uint8_t lineage = 0;
  uint8_t clock = 0;
  uint8_t spare[2] = {};
  Part part[kParts] = {};
};

struct AsyncCoordinator {  // durable
  uint8_t generation = 1;
  uint8_t lineage = 1;
  uint8_t base = 0;  // the manifest that the lineage began from
  uint8_t manifests = 1;
  uint8_t done = 0;
  uint8_t owner[kAsyncLanes] = {};
  uint8_t incarnation[2] = {};
  uint8_t spare[2] = {};
  AsyncManifest manifest[kAsyncManifests];
};

struct AsyncBudget {
  uint8_t deaths = 0, suspicions = 0, breaks = 0, crashes = 0;
};

struct AsyncCore {
  AsyncShard shard[2];
  AsyncWorker worker[kAsyncWorkers];
  AsyncCoordinator coordinator;
  AsyncBudget budget;
};

struct AsyncState {
  AsyncCore core;
  std::vector<uint64_t> network;  // sorted
};

// ---- Messages ----

enum class AsyncType : uint8_t {
  kNone,
  kFrame,    // lineage; part, lane, step, floor of the weights, worker, 1 if it is a stray
  kView,     // lineage; generation, owners of lanes 0 to 2
  kStart,    // lineage; base manifest, incarnations of both shards
  kCapture,  // lineage; clock
  kFile,     // lineage; clock, shard, both parts
};

struct AsyncMessage {
  AsyncType type = AsyncType::kNone;
  int lineage = 0;
  int a = 0, b = 0, c = 0, d = 0, e = 0, f = 0;  // not of a file; 8 bits each
  Part part[2] = {};                             // only of a file
};

uint64_t PackAsync(AsyncType type, int lineage, int a, int b = 0, int c = 0, int d = 0, int e = 0,
                   int f = 0);
uint64_t PackFile(int lineage, int clock, int shard, const Part (&part)[2]);
AsyncMessage UnpackAsync(uint64_t bits);
std::string ToString(const AsyncMessage& message);

}  // namespace capstan::model

#endif  // CAPSTAN_TESTS_MODEL_ASYNC_STATE_H_
