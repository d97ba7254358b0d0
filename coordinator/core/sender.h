// What nodes lack of what is wanted, sent again until their reports show it.
#ifndef CAPSTAN_COORDINATOR_CORE_SENDER_H_
#define CAPSTAN_COORDINATOR_CORE_SENDER_H_

#include <vector>

#include "coordinator/core/core_context.h"
#include "coordinator/core/job.h"
#include "coordinator/core/job_states.h"

namespace capstan::coordinator::core {

// Not thread-safe. Borrows the parts that it is made of.
class Sender {
 public:
  Sender(CoreContext& ctx, JobStates& states) : ctx_(ctx), states_(states) {}

  // All of the messages below that are due, to a job with a gang.
  void SendLacking(Job& job);
  // To tasks whose data are not known.
  void SendProbes(Job& job);
  // For a job at rest: files are taken, tasks stopped, shards emptied, until no node reports any of it.
  void WindDown(Job& job);
  // Until its node does not report it any more.
  void StopTask(Job& job, Task& task);

 private:
  // To the shards and then to the tasks, until all of them show it. A shard that does not report its
  // generation is told along with every repetition to a task.
  void SendView(Job& job);
  // A process that an earlier coordinator started has the key that it was given then, and the secret that it
  // was made with may be lost.
  void SendKeys(Job& job);
  // For versions that are committed or given up.
  void SendFilesTaken(Job& job);
  // To the lead, until it shows them.
  void SendChanges(Job& job);
  // The changes that the base of the lineage lacks.
  std::vector<node::v1::Order> ChangesBeyondBase(const Job& job) const;
  // Shards that left go as soon as they hold nothing. Others that are lost may be found again.
  void EndThoseWhoLeft(Job& job);

  CoreContext& ctx_;
  JobStates& states_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_SENDER_H_
