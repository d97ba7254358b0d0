// Free nodes for running jobs that have fewer workers than they may have.
#ifndef CAPSTAN_COORDINATOR_CORE_GANG_FILLER_H_
#define CAPSTAN_COORDINATOR_CORE_GANG_FILLER_H_

#include <map>
#include <optional>
#include <set>
#include <string>

#include "coordinator/core/core_context.h"
#include "coordinator/core/job.h"
#include "coordinator/core/sender.h"
#include "coordinator/scheduler/gang.h"

namespace capstan::coordinator::core {

// Not thread-safe. Borrows the parts that it is made of.
class GangFiller {
 public:
  GangFiller(CoreContext& ctx, Sender& sender) : ctx_(ctx), sender_(sender) {}

  struct NodesShown {  // to the scheduler
    scheduler::Nodes nodes;
    std::map<std::string, std::set<std::string>> strays;
  };
  // What was tried in vain is tried again once something may be free, though each event of the job asks.
  void FillGang(Job& job);
  void FillGang(Job& job, std::optional<NodesShown>* shown);

 private:
  CoreContext& ctx_;
  Sender& sender_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_GANG_FILLER_H_
