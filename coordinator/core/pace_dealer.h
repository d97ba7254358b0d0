// Lanes by the speed of workers: the lead tells how long each needs for its lanes of a step.
//
// Every worker has as many lanes as make the last one done soonest, if that differs enough, and for long
// enough, to be worth a generation. A worker whose lanes were taken, because it was late or too slow for
// any, shows its speed with one lane, again and again after twice the time. A worker that keeps up then is
// as good as any other.
#ifndef CAPSTAN_COORDINATOR_CORE_PACE_DEALER_H_
#define CAPSTAN_COORDINATOR_CORE_PACE_DEALER_H_

#include "coordinator/core/core_context.h"
#include "coordinator/core/generations.h"
#include "coordinator/core/job.h"

namespace capstan::coordinator::core {

// Not thread-safe. Borrows the parts that it is made of.
class PaceDealer {
 public:
  PaceDealer(CoreContext& ctx, Generations& generations) : ctx_(ctx), generations_(generations) {}

  // Once a second, and at once after each change of the view.
  void WeighPaces(Job& job);
  // The task gets a lane again after a while, to show its speed.
  void TakeLanes(Task& task);
  // One task at a time gets a lane of the task that has most to do. A task that needs longer than a step to
  // take the weights gets none: every step would wait for it.
  void BeginTrial(Job& job);

 private:
  // For a shard that does not measure: a task that was not late with its lane has shown enough.
  void EndUnmeasuredTrial(Job& job);

  CoreContext& ctx_;
  Generations& generations_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_PACE_DEALER_H_
