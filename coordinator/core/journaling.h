// What the journal is told of jobs after each step.
#ifndef CAPSTAN_COORDINATOR_CORE_JOURNALING_H_
#define CAPSTAN_COORDINATOR_CORE_JOURNALING_H_

#include "coordinator/core/core_context.h"
#include "coordinator/core/job.h"

namespace capstan::coordinator::core {

// Not thread-safe. Borrows the parts that it is made of.
class Journaling {
 public:
  explicit Journaling(CoreContext& ctx) : ctx_(ctx) {}

  // A job is saved whole when a fact of it has changed. What its lead tells again is none, so the heartbeats of
  // a running job write nothing.
  void SaveJobs();
  // From time to time. The history of a job at rest is saved with the job.
  void SaveHistories();

 private:
  void SaveHistory(Job& job);

  CoreContext& ctx_;
  absl::Duration histories_saved_ = -absl::InfiniteDuration();
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_JOURNALING_H_
