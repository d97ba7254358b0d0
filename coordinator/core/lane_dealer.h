// Lanes for workers that join, and lanes that are late.
#ifndef CAPSTAN_COORDINATOR_CORE_LANE_DEALER_H_
#define CAPSTAN_COORDINATOR_CORE_LANE_DEALER_H_

#include "coordinator/core/core_context.h"
#include "coordinator/core/generations.h"
#include "coordinator/core/job.h"
#include "coordinator/core/losses.h"
#include "coordinator/core/pace_dealer.h"

namespace capstan::coordinator::core {

// Not thread-safe. Borrows the parts that it is made of.
class LaneDealer {
 public:
  LaneDealer(CoreContext& ctx, Generations& generations, PaceDealer& pace, Losses& losses)
      : ctx_(ctx), generations_(generations), pace_(pace), losses_(losses) {}

  // Joiners whose data are right enter the view. Those that have weights get their share, except behind a
  // link on which a version takes longer than a step: every step would wait for it.
  void AdvanceJoiners(Job& job);
  // What the oldest step still lacks when the others have long been there goes to a task that is done, with
  // all other lanes of the late one: it would be late with those next. The bits of a lane do not depend on
  // who computes it, and the first copy counts.
  void ReissueLate(Job& job);

 private:
  // A job whose lanes are fixed: an owner that is late for very long is lost. The job goes back to its last
  // checkpoint, so this is for tasks that hang. Nobody is judged before a step of the lineage is known, nor
  // if no other task could take the lanes.
  void LoseTheHung(Job& job);

  CoreContext& ctx_;
  Generations& generations_;
  PaceDealer& pace_;
  Losses& losses_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_LANE_DEALER_H_
