// The classes of faults and of other differences between jobs, and how often each of them had an
// effect.
//
// A drawn fault may do nothing: a cut between silent hosts, a pause of a sleeping process, a crash
// of an absent host. So effects are counted instead of faults, where they occur: a message that was
// held back, a write that failed.
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
  kStreamBreak,       // a task's streams break
  kCut,               // two hosts, any of all, do not hear each other
  kOneWayCut,         // one of two hosts does not hear the other
  kTaskCrash,         // a signal ends a task, and its service reports that
  kWorkerCrash,       // a worker's host crashes and comes back
  kShardCrash,        // a shard's host crashes and comes back
  kCoordinatorCrash,  // the coordinator's host crashes and comes back
  kTaskPause,         // a process stands still, and afterwards is a zombie for a while
  kShardPause,
  kCoordinatorPause,
  kDamage,        // a bit of a checkpoint file flips on the disk
  kLeadBreak,     // streams between a shard and the others break
  kSessionBreak,  // a node's stream to the coordinator breaks, and the same process comes back
  kLeave,         // a worker's service ends itself, and another one starts on its host
  // Not faults, but kinds of jobs and clusters. After the dash: the effect that is counted.
  kLocal,      // the task is its own store - a version that it makes
  kElastic,    // the job begins with fewer workers than it wants - a host that joins it later
  kLossScale,  // fp16: the loss is scaled - a step that changes the scale
  kForget,     // ended jobs and lost nodes are soon forgotten - one that is
  kClipNorm,   // the gradient is clipped by its norm - a step that is
  kTrust,      // the optimizer is lars or lamb - a step with the norms of tensors
};
inline constexpr int kFaultClasses = static_cast<int>(FaultClass::kTrust) + 1;
absl::string_view NameOf(FaultClass what);

// Not thread-safe, like everything in a simulation.
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
