// Generations of a lineage: every change of the lanes' owners is one. As few lanes as possible change
// hands.
#ifndef CAPSTAN_COORDINATOR_CORE_GENERATIONS_H_
#define CAPSTAN_COORDINATOR_CORE_GENERATIONS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/core/core_context.h"
#include "coordinator/core/job.h"
#include "coordinator/core/members.h"

namespace capstan::coordinator::core {

// What a lane costs a task that has to show its speed first.
inline constexpr double kUnproven = 1e6;
// What a lane costs this task, against the others (lane_owners.h).
double CostTo(const Task& taker);

// Not thread-safe. Borrows the parts that it is made of.
class Generations {
 public:
  explicit Generations(CoreContext& ctx) : ctx_(ctx) {}

  // `owners` has the index of a task for each lane; `type` is the event.
  void NewGeneration(Job& job, const std::vector<int32_t>& owners, const std::string& type);
  // Lanes of lost tasks go to tasks that have weights. If no task has them, they go to tasks that will.
  void TakeOverLanes(Job& job);
  // Takes lanes over if that is due.
  void AdvanceTakeover(Job& job);

 private:
  // A job that drops residuals: people are told how much. `left`: lanes by the task that they leave.
  void NoteLanesWithout(Job& job, const std::map<int32_t, std::vector<int32_t>>& left);

  CoreContext& ctx_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_GENERATIONS_H_
