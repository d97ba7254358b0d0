// All that the coordinator knows about one job.
#ifndef CAPSTAN_COORDINATOR_CORE_JOB_RECORD_H_
#define CAPSTAN_COORDINATOR_CORE_JOB_RECORD_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "capstan/job/v1/job_service.pb.h"
#include "capstan/node/v1/node.pb.h"
#include "coordinator/core/gang.h"
#include "coordinator/core/log_buffer.h"
#include "coordinator/core/metric_history.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

// Lost workers that a job remembers.
inline constexpr int kLostKept = 16;

// One worker of a job's gang. The rank belongs to one incarnation of one node for ever; what takes
// its lanes over is another rank.
struct Rank {
  int32_t index = 0;
  std::string node;
  std::string host;
  int64_t incarnation = 0;
  std::vector<int> devices;

  bool probed = false;
  node::v1::ProbeResult probe;

  bool present = false;          // in the node's newest heartbeat
  bool seen = false;             // in any heartbeat
  node::v1::TaskState state;     // the newest report
  node::v1::StepPhases counted;  // what of state.phases() stands in the history already
  bool lost = false;             // owns no lane any more
  int64_t lapsed_at = 0;         // the generation in which its lease alone lapsed; 0: it did not
  bool gone = false;             // runs nowhere, as far as anybody can know
  bool forgotten = false;        // lost and gone long ago: only the index stands for it
  // Had its share of the lanes; false: has just joined, or they were taken from it, for it was late
  // or slow. Such a one gets lanes from `deal_at` on, once it has the weights of `deal_step`.
  bool dealt = true;
  absl::Duration deal_at;
  int64_t deal_step = -1;  // -1: not set yet
  // How often lanes were taken from it; 0 again once it has kept up long enough since `dealt_at`.
  int late = 0;
  absl::Duration dealt_at;
  bool on_trial = false;         // has one lane, to show how fast it is
  int64_t trial_step = 0;        // decided when the trial began
  double cost = 1;               // of a lane, against the others (lane_owners.h)
  node::v1::WorkerPace weighed;  // what of its pace was looked at already
  std::string why;               // lost, or failed: a sentence
  bool failure_told = false;
  bool keyed = false;   // on the session at hand it was sent its key for files
  bool behind = false;  // it is told that this rank takes weights too slowly

  absl::Duration probe_sent = -absl::InfiniteDuration();
  absl::Duration start_sent = -absl::InfiniteDuration();
  absl::Duration view_sent = -absl::InfiniteDuration();
  absl::Duration stop_sent = -absl::InfiniteDuration();
  absl::Duration taken_sent = -absl::InfiniteDuration();
};

// One shard of a job's gang; bound to one incarnation like a rank.
struct Shard {
  int32_t index = 0;
  std::string node;
  std::string host;
  int64_t incarnation = 0;
  std::string address;

  bool present = false;
  bool seen = false;
  node::v1::ShardState state;
  bool lost = false;
  bool lapsed = false;  // lost by its lease alone
  bool gone = false;
  std::string why;
  bool failure_told = false;
  bool keyed = false;  // as of a Rank
  absl::Duration lineage_sent = -absl::InfiniteDuration();
  absl::Duration view_sent = -absl::InfiniteDuration();
  int64_t generation_sent = 0;
  absl::Duration end_sent = -absl::InfiniteDuration();
  absl::Duration taken_sent = -absl::InfiniteDuration();
};

// A committed manifest.
struct SavedManifest {
  job::v1::SavedCheckpoint saved;
  std::vector<int64_t> orders;  // ids that its snapshot has applied
  bool refused = false;         // a shard found it damaged
};

// Something that a person, or the coordinator itself, wanted of the running job.
struct JobOrder {
  node::v1::Order order;  // with its step once the lead has told it
  int64_t lineage = 0;    // in which it took effect; 0: not yet
  // Of a suspend: the coordinator's, for a shard that leaves. The job goes on in the next lineage.
  bool hand_over = false;
};

// What was reported of one version of the lineage.
struct Collected {
  std::map<int32_t, node::v1::WrittenFiles> files;  // by shard; 0: the task that is its own shard
  std::map<int32_t, std::string> errors;            // by shard, the newest
};

enum class ManifestPhase { kNone, kWriting, kRetry, kCommitted };

struct JobRecord {
  explicit JobRecord(const CoreOptions& options)
      : max_events(options.max_events),
        logs(options.max_log_lines, options.max_log_bytes),
        history(options.max_history_points) {}

  // -- what was asked for
  std::string id;
  int64_t sequence = 0;  // order of submission
  std::string request_id;
  std::string owner;  // Caller::name of its Submit
  job::v1::JobSpec spec;
  std::string spec_bytes;  // deterministic serialization of what was submitted, to compare
  bool spec_changed =
      false;  // `spec` is another one: resumed on other numbers before it was resolved
  bool cancel_asked = false;
  absl::Duration cancel_since;

  // -- what people see
  common::v1::JobState state = common::v1::JOB_STATE_PENDING;
  std::string reason;
  std::string message;
  std::string waiting;  // replaces `message` while it is not empty
  job::v1::Progress progress;
  std::map<int32_t, common::v1::EpochRecord> epochs;
  std::string weights_sha256;
  std::string checkpoint_uri;
  int64_t samples_used = 0;
  const int max_events;
  std::vector<job::v1::Event> events;
  std::vector<int64_t> event_numbers;  // of `events`, growing
  int64_t last_event = 0;
  LogBuffer logs;
  MetricHistory history;
  absl::Time submitted_at;
  absl::Time started_at = absl::InfinitePast();  // InfinitePast: not yet
  absl::Time finished_at = absl::InfinitePast();
  absl::Duration ended_at;  // by the core's clock: its end, or the coordinator's start behind that

  // -- the gang
  std::vector<Rank> ranks;
  std::vector<Shard> shards;
  int64_t probe_id = 0;
  bool probing = false;    // the gang is there, its data are not known yet
  absl::Duration started;  // its clock: when it got its gang, less what it ran before that
  bool clock_runs = false;
  absl::Duration ran;                                       // not clock_runs: in all
  absl::Duration ran_saved_at = -absl::InfiniteDuration();  // when that was saved last
  std::string requeue;  // set: the gang fell apart before it had a view; why

  // -- history
  std::optional<job::v1::ResolvedSpec> resolved;
  std::string resolved_bytes;
  std::string digest;                                     // 32 bytes
  common::v1::View view;                                  // lineage 0: none yet
  absl::Duration takeover_at = absl::InfiniteDuration();  // finite: lanes wait for new owners
  node::v1::LeadState lead;

  // -- the end
  node::v1::WrittenFiles weights_files;     // of the rank that owned lane 0, of the last version
  std::map<int64_t, Collected> collecting;  // by version, above settled_step
  int64_t settled_step = -1;  // checkpoints of the lineage up to here are committed or abandoned
  ManifestPhase manifest = ManifestPhase::kNone;
  int64_t manifest_step = 0;      // of the link in flight or to be tried again
  absl::Duration manifest_since;  // when the link in flight was ordered
  SavedManifest linking;          // what the link in flight commits
  int64_t abandoned_checkpoints = 0;
  int manifest_attempts = 0;
  std::string manifest_error;  // of the last attempt; empty: none has failed since the last link
  int64_t failed_step = -1;    // of the lineage: people were told that this version, which is owed,
                               // cannot be saved yet
  absl::Duration manifest_retry_at;

  // -- going on after a fault
  std::vector<SavedManifest> manifests;  // in the order of their commits
  std::set<std::string> deleted;         // by people; their folders may still be there
  std::string base;             // `<l>-<s>` that the lineage began from; empty: the initial weights
  int64_t base_step = 0;        // its version
  int64_t recovering_step = 0;  // steps decided when it became RECOVERING
  bool recover = false;         // a new lineage is wanted
  // On disk, of a history that a record from before `resolved` does not know.
  std::vector<FoundManifest> found;
  // Histories up to this number were begun by somebody, whatever our record says.
  int64_t lineage_floor = 0;
  bool told_foreign = false;     // a lineage that cannot be was seen
  bool recover_free = false;     // and is no restart: a manifest was refused
  bool recover_by_loss = false;  // only because leases of shards lapsed or their processes died
  absl::Duration recover_at;     // recover: not before
  absl::Duration retry_at = -absl::InfiniteDuration();  // PENDING: not before
  absl::Time retry_wall = absl::InfinitePast();         // the same for people
  bool loss_counted = false;  // the last loss that left no worker is among `restarts`, or is none
  int32_t restarts = 0;
  std::string restart_reason;  // of the last
  int64_t restart_step = 0;    // the highest that was decided when one was counted
  absl::Duration ran_since = absl::InfiniteDuration();  // RUNNING beyond restart_step since then
  std::optional<int32_t> max_restarts;                  // by UpdateJob
  std::set<std::string> conditions;
  struct Rejoin {
    int failures = 0;
    absl::Duration not_before;
  };
  std::map<std::string, Rejoin> rejoin;  // by node
  bool on_gpus = false;                  // what its workers compute on

  // -- orders
  std::vector<JobOrder> orders;  // by id, from 1
  absl::Duration orders_sent = -absl::InfiniteDuration();
  absl::Duration hand_over_since = absl::InfiniteDuration();  // ordered; Infinite: none is

  // -- lanes that are late
  std::vector<double> step_seconds;  // of the last steps
  std::set<int32_t> late_lanes;      // that the oldest step waits for
  int64_t late_step = -1;
  absl::Duration late_since;                    // when one of these was last another
  std::map<int32_t, absl::Duration> issued_at;  // of late_step, lanes that changed hands in it
  std::map<int32_t, int> reissues;              // likewise: how often, for they were late
  int64_t reissue_generations = 0;
  int64_t weighed_generation = 0;  // in which the paces of workers are being weighed,
  absl::Duration weighed_at;       // since then,
  int uneven = 0;                  // and so many times in a row they were far apart
  int redeals = 0;                 // for paces that were uneven, of late
  absl::Duration redealt_at;       // the last of them
  absl::Duration complete_since = absl::InfiniteDuration();  // the last version is decided

  bool wound_down = false;  // at rest, and nothing of it runs anywhere
  bool unread = false;      // since the restart its folder has not been read: nothing is decided

  // -- the journal: what was saved, and what people were told
  std::string saved;  // durable facts, serialized, without progress
  int64_t saved_event = 0;
  std::vector<int64_t> dropped_events;  // since the last save
  common::v1::JobState told_state = common::v1::JOB_STATE_UNSPECIFIED;
  int64_t told_generation = 0;

  // -- waiting
  std::vector<int64_t> progress_mark;  // componentwise maximum so far
  absl::Duration progress_at;          // when a component last grew
  absl::Duration waiting_said_at = -absl::InfiniteDuration();
  absl::Duration waiting_logged_at = -absl::InfiniteDuration();

  bool ended() const {
    return state == common::v1::JOB_STATE_SUCCEEDED || state == common::v1::JOB_STATE_FAILED ||
           state == common::v1::JOB_STATE_CANCELLED;
  }
  // Holds no gang by right: what of it still runs is stopped.
  bool resting() const {
    return ended() || state == common::v1::JOB_STATE_SUSPENDED ||
           state == common::v1::JOB_STATE_PENDING;
  }
  bool has_view() const { return view.lineage() > 0; }
  // The gang at hand has its view.
  bool in_history() const { return has_view() && !probing; }
  bool IsLocal() const { return in_history() && view.shards().empty(); }
  int living() const;  // ranks that are not lost
  // How many workers of the spec each rank stands for, and those that are not lost do together.
  std::vector<int32_t> Shares() const;
  int living_workers() const;
  // Of those that are lost and gone all but the last kLostKept become places in `ranks` without content:
  // a job that lives for weeks has had many.
  void ForgetLostRanks();
  // What a shard reported of a version of the lineage, or null.
  const node::v1::WrittenFiles* FilesOf(int32_t shard, int64_t step) const;
  // All that the last version's manifest needs was reported.
  bool EndIsReported() const;
  // The newest that nobody has refused, or null: what a new lineage begins from.
  const SavedManifest* LastManifest() const;
  const SavedManifest* FindManifest(const std::string& checkpoint) const;
  // The validation accuracy of a version, where it was evaluated.
  std::optional<double> MetricOf(int64_t step) const;
  const job::v1::Recovery& recovery() const {
    return resolved.has_value() ? resolved->spec().recovery() : spec.recovery();
  }
  int32_t RestartLimit() const;
  // Counts the time with a gang, over all of its gangs (limits.active_deadline).
  absl::Duration Ran(absl::Duration now) const { return clock_runs ? now - started : ran; }
  void RunClock(absl::Duration now);
  void PauseClock(absl::Duration now);
  absl::Duration StallTimeout() const;  // InfiniteDuration: none
  bool SuspendOrdered() const;          // by a person
  bool HandOverOrdered() const;
  bool AllShardsReady() const;
  // Null: there is none.
  Rank* FindRank(int32_t index, const std::string& node, int64_t incarnation);
  Shard* FindShard(int32_t index, const std::string& node, int64_t incarnation);
  std::vector<int32_t> Owners() const {
    return {view.lane_owners().begin(), view.lane_owners().end()};
  }
  bool InView(const Rank& rank) const;
  // Has weights of the lineage: computes what it is given at once.
  bool IsAble(const Rank& rank) const {
    return !rank.lost && rank.present && rank.state.phase() == node::v1::TASK_PHASE_RUNNING &&
           rank.state.lineage() == view.lineage();
  }
  // The rank that owns lane 0 now, or null.
  Rank* LaneZeroOwner();

  void AddEvent(absl::Time wall, const std::string& type, const std::string& message);
  void AddLog(absl::Time wall, const std::string& level, const std::string& text);

  // With its metric.
  job::v1::SavedCheckpoint Described(const SavedManifest& manifest) const;
  job::v1::Job ToProto(bool with_history) const;
};

// Equal in all that a job's data are described by.
bool SameData(const common::v1::DatasetInfo& a, const common::v1::DatasetInfo& b);

// Whether the caller may change the job and read what it said and wrote: its owner, and whoever may do
// so with any job. PermissionDenied: names both.
absl::Status CheckOwner(const JobRecord& job, const Caller& caller);

// What the members that the job still has registered as: who joins them is to be of that version, too.
// nullopt: it has none left.
std::optional<std::string> VersionOf(const JobRecord& job, const NodeTable& nodes);

// "1 worker", "3 workers", "3 workers on 2 nodes".
std::string WorkersText(int workers, size_t nodes);

// "w1 on host b": how sentences name a member.
std::string NameOf(const Rank& rank);
std::string NameOf(const Shard& shard);

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_JOB_RECORD_H_
