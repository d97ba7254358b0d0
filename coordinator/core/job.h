// All that the coordinator knows about one job.
#ifndef CAPSTAN_COORDINATOR_CORE_JOB_H_
#define CAPSTAN_COORDINATOR_CORE_JOB_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "capstan/job/v1/job_service.pb.h"
#include "coordinator/core/checkpoints.h"
#include "coordinator/core/history.h"
#include "coordinator/core/job_changes.h"
#include "coordinator/core/job_events.h"
#include "coordinator/core/lane_paces.h"
#include "coordinator/core/late_lanes.h"
#include "coordinator/core/lineages.h"
#include "coordinator/core/log_buffer.h"
#include "coordinator/core/manifest_link.h"
#include "coordinator/core/members.h"
#include "coordinator/core/node_table.h"
#include "coordinator/core/recovery.h"
#include "coordinator/core/resolution.h"
#include "coordinator/core/restarts.h"
#include "coordinator/core/run_clock.h"
#include "coordinator/core/standing.h"
#include "coordinator/core/types.h"
#include "coordinator/core/vacancies.h"
#include "coordinator/core/waiting.h"
#include "coordinator/core/written_versions.h"

namespace capstan::coordinator::core {

// What was asked for.
struct Submission {
  std::string id;
  int64_t sequence = 0;  // order of submission
  std::string request_id;
  std::string owner;  // Caller::name of its Submit
  job::v1::JobSpec spec;
  std::string spec_bytes;  // deterministic serialization of what was submitted, to compare
  bool spec_changed =
      false;  // `spec` is another one: resumed on other numbers before it was resolved
};

// A job is made of parts, each with its own rules. Outside the core it is read through its const methods.
// Not thread-safe.
class Job {
 public:
  Job(Submission what, const CoreOptions& options)
      : what_(std::move(what)),
        events_(options.max_events),
        logs_(options.max_log_lines, options.max_log_bytes),
        history_(options.max_history_points) {}

  // -- what was asked for
  const std::string& id() const { return what_.id; }
  int64_t sequence() const { return what_.sequence; }
  const std::string& request_id() const { return what_.request_id; }
  const std::string& owner() const { return what_.owner; }
  const job::v1::JobSpec& spec() const { return what_.spec; }
  const std::string& spec_bytes() const { return what_.spec_bytes; }
  bool spec_changed() const { return what_.spec_changed; }
  void ChangeSpec(job::v1::JobSpec spec);

  // -- its parts
  const Standing& standing() const { return standing_; }
  Standing& standing() { return standing_; }
  const Waiting& waiting() const { return waiting_; }
  Waiting& waiting() { return waiting_; }
  const JobEvents& events() const { return events_; }
  JobEvents& events() { return events_; }
  const LogBuffer& logs() const { return logs_; }
  LogBuffer& logs() { return logs_; }
  const History& history() const { return history_; }
  History& history() { return history_; }
  const Members& members() const { return members_; }
  Members& members() { return members_; }
  const RunClock& clock() const { return clock_; }
  RunClock& clock() { return clock_; }
  const Resolution& resolution() const { return resolution_; }
  Resolution& resolution() { return resolution_; }
  const Lineages& lineages() const { return lineages_; }
  Lineages& lineages() { return lineages_; }
  const Recovery& recovery() const { return recovery_; }
  Recovery& recovery() { return recovery_; }
  const Restarts& restarts() const { return restarts_; }
  Restarts& restarts() { return restarts_; }
  const Checkpoints& checkpoints() const { return checkpoints_; }
  Checkpoints& checkpoints() { return checkpoints_; }
  const WrittenVersions& written() const { return written_; }
  WrittenVersions& written() { return written_; }
  const ManifestLink& link() const { return link_; }
  ManifestLink& link() { return link_; }
  const JobChanges& changes() const { return changes_; }
  JobChanges& changes() { return changes_; }
  const LateLanes& late() const { return late_; }
  LateLanes& late() { return late_; }
  LanePaces& paces() { return paces_; }
  const LanePaces& paces() const { return paces_; }
  Vacancies& vacancies() { return vacancies_; }

  // -- of these parts, what is asked most
  common::v1::JobState state() const { return standing_.state(); }
  bool ended() const { return standing_.ended(); }
  bool resting() const { return standing_.resting(); }
  bool cancel_asked() const { return standing_.cancel_asked(); }
  const std::vector<Task>& tasks() const { return members_.tasks(); }
  std::vector<Task>& tasks() { return members_.tasks(); }
  const std::vector<Shard>& shards() const { return members_.shards(); }
  std::vector<Shard>& shards() { return members_.shards(); }
  const common::v1::View& view() const { return lineages_.view(); }
  const node::v1::LeadState& lead() const { return history_.lead(); }
  const std::optional<job::v1::ResolvedSpec>& resolved() const { return resolution_.spec(); }

  // -- what several parts say together
  bool has_view() const { return lineages_.begun(); }
  // The gang at hand has its view.
  bool in_history() const { return has_view() && !members_.probing(); }
  bool IsLocal() const { return in_history() && view().shards().empty(); }
  int living_workers() const;
  std::vector<int32_t> Shares() const;
  // How many more workers the running job may have; 0: it takes none now.
  int LackingWorkers() const;
  // All that the last version's manifest needs was reported.
  bool EndIsReported() const;
  bool AllShardsReady() const { return members_.AllShardsReady(view().lineage()); }
  // The job's evaluation.metric of a version. nullopt: it was not evaluated.
  std::optional<double> MetricOf(int64_t step) const;
  bool SmallerIsBetter() const;  // of this metric
  // The task has shown that its data are those of the job. Who is in the view did so before.
  bool HasItsData(const Task& task) const;
  // Its checkpoints have what error feedback has left out (recovery.residuals: rollback).
  bool KeepsResiduals() const;
  // Lanes have the owners that their lineage began with: no other task has their residuals. Once the last
  // version is decided nobody needs them.
  bool LanesAreFixed() const { return KeepsResiduals() && !lead().complete(); }
  // What error feedback has left out is lost with a lane's owner (recovery.residuals: drop).
  bool DropsResiduals() const;
  const job::v1::Recovery& recovery_spec() const {
    return resolved().has_value() ? resolved()->spec().recovery() : spec().recovery();
  }
  int32_t RestartLimit() const { return restarts_.LimitOf(recovery_spec()); }
  absl::Duration Deadline() const;      // limits.active_deadline; InfiniteDuration: none
  absl::Duration StallTimeout() const;  // InfiniteDuration: none
  bool SuspendOrdered() const;          // by a person
  // Has weights of the lineage: computes what it is given at once.
  bool IsAble(const Task& task) const;
  // The lead's last report names it as a slow reader: it needs longer than a step to receive a version.
  bool ReadsSlowly(const Task& task) const;
  // The task that owns lane 0 now, or null.
  const Task* LaneZeroOwner() const;

  // Each event is a line of the log, too.
  void AddEvent(absl::Time wall, const std::string& type, const std::string& message);
  void AddLog(absl::Time wall, const std::string& level, const std::string& text);

  // Its checkpoints with their metrics, the newest first.
  std::vector<job::v1::SavedCheckpoint> SavedCheckpoints() const;
  // nullopt: it has no such checkpoint.
  std::optional<job::v1::SavedCheckpoint> FindCheckpoint(const std::string& id) const;
  // Names of the nodes that have, or had, a task of it.
  std::set<std::string> NodesOfTasks() const;

  // -- what the core notes of it
  // At rest, and nothing of it runs anywhere.
  bool wound_down() const { return wound_down_; }
  void set_wound_down(bool down) { wound_down_ = down; }
  // Its folder has not been read since the restart: nothing is decided.
  bool unread() const { return unread_; }
  void set_unread(bool unread) { unread_ = unread; }
  // Manifests on disk of a history that a record without a resolved spec does not know.
  void HoldFound(std::vector<FoundManifest> found) { found_ = std::move(found); }
  std::vector<FoundManifest> TakeFound() { return std::exchange(found_, {}); }
  // The facts that were saved last, serialized, without progress.
  const std::string& saved() const { return saved_; }
  void set_saved(std::string facts) { saved_ = std::move(facts); }
  // What people have not been told yet. Then they have been.
  struct News {
    bool state = false;
    bool generation = false;
  };
  News TakeNews();

 private:
  job::v1::SavedCheckpoint Described(const SavedManifest& manifest) const;

  Submission what_;
  Standing standing_;
  Waiting waiting_;  // its text replaces the message
  JobEvents events_;
  LogBuffer logs_;
  History history_;
  Members members_;
  RunClock clock_;
  Resolution resolution_;
  Lineages lineages_;
  Recovery recovery_;
  Restarts restarts_;
  Checkpoints checkpoints_;
  WrittenVersions written_;
  ManifestLink link_;
  JobChanges changes_;
  LateLanes late_;
  LanePaces paces_;
  Vacancies vacancies_;
  bool wound_down_ = false;
  bool unread_ = false;
  std::vector<FoundManifest> found_;
  std::string saved_;
  common::v1::JobState told_state_ = common::v1::JOB_STATE_UNSPECIFIED;
  int64_t told_generation_ = 0;
};

// Equal in all that a job's data are described by.
bool SameData(const common::v1::DatasetInfo& a, const common::v1::DatasetInfo& b);

// Whether the caller may change the job and read what it said and wrote: its owner may, and whoever may do
// so with any job. PermissionDenied: names both.
absl::Status CheckOwner(const Job& job, const Caller& caller);

// The version that the members which the job still has registered with: a node that joins them is to be
// of it, too. nullopt: it has none left.
std::optional<std::string> VersionOf(const Job& job, const NodeTable& nodes);

// "1 worker", "3 workers", "3 workers on 2 nodes".
std::string WorkersText(int workers, size_t nodes);

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_JOB_H_
