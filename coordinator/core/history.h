// How far a job has got: the state that its lead reported last, progress, epochs, samples, metrics.
#ifndef CAPSTAN_COORDINATOR_CORE_HISTORY_H_
#define CAPSTAN_COORDINATOR_CORE_HISTORY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "capstan/common/v1/common.pb.h"
#include "capstan/job/v1/job_service.pb.h"
#include "capstan/node/v1/node.pb.h"
#include "coordinator/core/members.h"
#include "coordinator/core/metric_history.h"

namespace capstan::coordinator::core {

// Not thread-safe.
class History {
 public:
  // Metrics have at most this many points.
  explicit History(int max_points) : metrics_(max_points) {}

  // The newest report of this lineage, without its epochs.
  const node::v1::LeadState& lead() const { return lead_; }
  const job::v1::Progress& progress() const { return progress_; }
  const std::map<int32_t, common::v1::EpochRecord>& epochs() const { return epochs_; }
  int64_t samples_used() const { return samples_used_; }
  const MetricHistory& metrics() const { return metrics_; }
  MetricHistory& metrics() { return metrics_; }

  // Adds the epochs that are new, which are the answer. Old ones that were dropped do not come back.
  std::vector<common::v1::EpochRecord> AddEpochs(const node::v1::LeadState& lead);
  void SetLead(const node::v1::LeadState& lead);
  // What the lead says of its newest step, as progress.
  void TakeProgress(const job::v1::ResolvedSpec& spec);
  void NoteUpdated(absl::Time wall);
  // The number of skipped steps is another; it may be lower, after a return to a checkpoint.
  void SetSkipped(int64_t steps) { progress_.set_skipped_steps(steps); }
  void SetTotalSteps(int64_t steps) { progress_.set_total_steps(steps); }
  // A job that runs is in an epoch.
  void EnterFirstEpoch();
  // Nothing is computed now, so no end can be foretold.
  void ForgetEta() { progress_.clear_eta_seconds(); }
  // The last version was found on disk.
  void FindEnd(int64_t step, int64_t samples_used);

  // A point of metrics at the lead's newest step, with what the tasks spent since the last one.
  void AddPoint(std::vector<Task>& tasks, absl::Time wall);
  // The job's evaluation.metric of a version. nullopt: it was not evaluated.
  std::optional<double> MetricOf(int64_t step, const job::v1::ResolvedSpec& spec) const;

  // What came after the base is dropped. The lead has reported nothing yet.
  void BeginLineage(int64_t base_step, int64_t samples_used, int64_t steps_per_epoch);
  void Load(const job::v1::Progress& progress, std::vector<common::v1::EpochRecord> epochs,
            int64_t samples_used);

 private:
  node::v1::LeadState lead_;
  job::v1::Progress progress_;
  std::map<int32_t, common::v1::EpochRecord> epochs_;
  int64_t samples_used_ = 0;
  MetricHistory metrics_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_HISTORY_H_
