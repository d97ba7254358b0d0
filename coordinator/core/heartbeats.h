// What nodes say of themselves and of what they hold.
#ifndef CAPSTAN_COORDINATOR_CORE_HEARTBEATS_H_
#define CAPSTAN_COORDINATOR_CORE_HEARTBEATS_H_

#include <string>

#include "coordinator/core/core_context.h"
#include "coordinator/core/job.h"
#include "coordinator/core/job_run.h"
#include "coordinator/core/job_states.h"
#include "coordinator/core/losses.h"
#include "coordinator/core/member_reports.h"
#include "coordinator/core/recoveries.h"

namespace capstan::coordinator::core {

// Not thread-safe. Borrows the parts that it is made of.
class Heartbeats {
 public:
  Heartbeats(CoreContext& ctx, JobStates& states, Recoveries& recoveries, Losses& losses,
             MemberReports& reports, JobRun& run)
      : ctx_(ctx),
        states_(states),
        recoveries_(recoveries),
        losses_(losses),
        reports_(reports),
        run_(run) {}

  // A heartbeat is complete: what it does not name is not there.
  void OnHeartbeat(Node& node, const node::v1::Heartbeat& heartbeat);
  void OnProbeResult(Node& node, const node::v1::ProbeResult& result);
  void OnLogs(Node& node, const node::v1::LogBatch& batch);
  // Until then nodes keep what they hold of jobs that the journal does not know.
  void SpareUntil(absl::Duration time) { spare_until_ = time; }

 private:
  // After a heartbeat: which members are gone, because they were stopped or by themselves.
  void SettleMembers(Node& node, Job& job);
  // A shard of the job is in that process, under another number than it reports.
  bool IsRenumbered(const Node& node, Job& job, const node::v1::ShardState& state);
  // The node has something of a job that has no business there.
  void StopStray(Node& node, const std::string& job_id, bool is_task);
  // A journal that lost the job, or a wrong state folder, would else end work that is good.
  bool Spared(const Node& node, const std::string& job_id);

  CoreContext& ctx_;
  JobStates& states_;
  Recoveries& recoveries_;
  Losses& losses_;
  MemberReports& reports_;
  JobRun& run_;
  absl::Duration spare_until_ = -absl::InfiniteDuration();  // what nodes hold of unknown jobs
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_HEARTBEATS_H_
