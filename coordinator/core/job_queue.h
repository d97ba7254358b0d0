// Asks the scheduler which waiting jobs start, and carries out what it decides.
#ifndef CAPSTAN_COORDINATOR_CORE_JOB_QUEUE_H_
#define CAPSTAN_COORDINATOR_CORE_JOB_QUEUE_H_

#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/core_context.h"
#include "coordinator/core/gang_filler.h"
#include "coordinator/core/job.h"
#include "coordinator/core/job_run.h"
#include "coordinator/core/job_states.h"
#include "coordinator/scheduler/gang.h"
#include "coordinator/scheduler/plan.h"

namespace capstan::coordinator::core {

// Not thread-safe. Borrows the parts that it is made of.
class JobQueue {
 public:
  JobQueue(CoreContext& ctx, JobStates& states, GangFiller& filler, JobRun& run)
      : ctx_(ctx), states_(states), filler_(filler), run_(run) {}

  // Plans the queue again if something is free or waits that did not. Else plans `submitted`, a new job
  // or null: the others still wait for the same.
  void Plan(Job* submitted);
  // On a tick: a job's back-off may be over.
  void LookAtRetries();
  // When the queue is to be looked at again.
  absl::Duration NextDue() const;

 private:
  // A pass through the whole queue, after the running jobs that lack workers.
  void Schedule();
  // `jobs` wait, in the order of the queue, and continue the last pass through it.
  void PlanJobs(std::vector<Job*> jobs);
  // What the scheduler is told of a job that waits. nullopt: the job waits for something else, and says so.
  std::optional<scheduler::PendingJob> PendingOf(Job& job);
  void Say(Job& job, const std::string& reason, const std::string& text);
  void Explain(Job& job, const scheduler::Explain& explain);
  // `kind`: what it computes on, for people.
  void StartGang(Job& job, const scheduler::Gang& gang, const std::string& kind);
  // CoreOptions::expected_nodes.
  bool AllExpectedAreThere() const;

  CoreContext& ctx_;
  JobStates& states_;
  GangFiller& filler_;
  JobRun& run_;
  scheduler::Queue queue_;  // of the last pass
  absl::Duration scheduled_at_ = -absl::InfiniteDuration();
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_JOB_QUEUE_H_
