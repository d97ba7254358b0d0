// The classes of faults, and of what else befalls some jobs and not others; how often each of them
// had an effect.
//
// A fault that is drawn may do nothing: a cut between hosts that say nothing, a pause of a process
// that sleeps, a crash of what is not there. So what is counted is not the fault, it is what came
// of it, at the place where it happens: the message that was held back, the write that failed.
#ifndef CAPSTAN_TESTS_SIM_FAULT_CLASS_H_
#define CAPSTAN_TESTS_SIM_FAULT_CLASS_H_

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace capstan::sim {

enum class FaultClass {
  kSlow,              // messages are late
  kRepeat,            // ... come twice
  kReorder,           // ... overtake each other
  kCorrupt,           // ... have a wrong bit
  kDiskFull,          // writes fail
  kSyncError,         // fsync fails
  kPowerCut,          // a host that crashes loses what was not synced
  kStreamBreak,       // streams of a task break
  kCut,               // two hosts do not hear each other: any two of all
  kOneWayCut,         // one of them does not hear the other
  kTaskCrash,         // a task ends by a signal; its service reports it
  kWorkerCrash,       // a worker's host; it comes back
  kShardCrash,        // a shard's host; it comes back
  kCoordinatorCrash,  // likewise
  kTaskPause,         // a process stands still: afterwards it is a zombie for a while
  kShardPause,
  kCoordinatorPause,
  kDamage,        // a bit of a checkpoint's file flips on the disk
  kLeadBreak,     // streams between a shard and the others break
  kSessionBreak,  // a node's stream to the coordinator breaks; the same process comes back
  kLeave,         // a worker's service ends itself, and another one comes to its host
  // Not faults: what a job or a cluster is like.
  kLocal,      // a task that is its own store; a version that it makes
  kElastic,    // a job begins with fewer workers than it wants; a host that joins it later
  kLossScale,  // fp16: the loss is scaled; a step that changes the scale
  kForget,     // ended jobs and lost nodes are not kept for long; one that is forgotten
};
inline constexpr int kFaultClasses = static_cast<int>(FaultClass::kForget) + 1;
absl::string_view NameOf(FaultClass what);

// Not thread-safe, as nothing in a simulation is.
class Effects {
 public:
  void Saw(FaultClass what) { ++counts_[static_cast<int>(what)]; }
  int64_t of(FaultClass what) const { return counts_[static_cast<int>(what)]; }
  void Add(const Effects& other) {
    for (int i = 0; i < kFaultClasses; ++i) counts_[i] += other.counts_[i];
  }

 private:
  std::array<int64_t, kFaultClasses> counts_ = {};
};

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_FAULT_CLASS_H_
