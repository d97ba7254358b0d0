// The lineage that a job is in: its view, the checkpoint that it began from, and the numbers that other
// lineages have used up.
#ifndef CAPSTAN_COORDINATOR_CORE_LINEAGES_H_
#define CAPSTAN_COORDINATOR_CORE_LINEAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "capstan/common/v1/common.pb.h"
#include "coordinator/core/members.h"

namespace capstan::coordinator::core {

// A record that was put back from a copy lacks no more than this many lineages. A number further ahead
// was invented, and would use the numbers up.
inline constexpr int64_t kMostLineagesAhead = 1 << 20;

// Not thread-safe.
class Lineages {
 public:
  // Lineage 0: none has begun.
  const common::v1::View& view() const { return view_; }
  bool begun() const { return view_.lineage() > 0; }
  int64_t lineage() const { return view_.lineage(); }
  int64_t generation() const { return view_.generation(); }
  // By lane: the index of the task that computes it.
  std::vector<int32_t> Owners() const;
  bool Lists(const Task& task) const;  // the view does
  // The index of the task that owns lane 0; -1: no task does.
  int32_t OwnerOfLaneZero() const;
  // The task with this index owns a lane.
  bool Owns(int32_t task) const;

  // `<lineage>-<step>` of the checkpoint that the lineage began from; empty: the initial weights.
  const std::string& base() const { return base_; }
  int64_t base_step() const { return base_step_; }

  // The highest number that any history is known to have; the next lineage is above it.
  int64_t HighestKnown() const;
  // The first view of the next lineage: these owners, and the tasks of the gang that have their data.
  common::v1::View NextLineage(const std::vector<int32_t>& owners,
                               const std::vector<Task>& tasks) const;
  void Begin(common::v1::View view, std::string base, int64_t base_step);
  // The same lineage with other owners, or other tasks.
  void BeginGeneration(const std::vector<int32_t>& owners, const std::vector<Task>& tasks);

  // Somebody speaks of a lineage.
  enum class Claim {
    kKnown,        // the record has it
    kNew,          // the record is old; the next lineage is above that one
    kAbsurd,       // far too high: it does not count
    kAbsurdAgain,  // not for the first time
  };
  Claim Judge(int64_t lineage);

  void Load(common::v1::View view, std::string base, int64_t base_step);

 private:
  common::v1::View view_;
  std::string base_;
  int64_t base_step_ = 0;
  int64_t floor_ = 0;  // lineages up to this one were begun, whatever the record says
  bool told_absurd_ = false;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_LINEAGES_H_
