// The coordinator without its threads, clocks, files and wires: jobs, gangs, views, leases.
//
//   PENDING   until a whole gang is free          probe -> resolve -> view 1.1
//   STARTING  StartLineage to the shards; when all hold their chunks, StartTask to the workers
//   RUNNING   from the first step decided, or when all tasks run
//   the end   lead complete + files of all shards + weights.safetensors -> manifest -> SUCCEEDED
//
// Nothing here waits for an answer: every heartbeat and Tick compares what nodes report with what
// is wanted and sends what lacks, to one target at most every `resend`. Lost, late and repeated
// messages therefore change nothing. Durable before anyone is told; shards are told before workers.
//
//   a worker is lost   the others get its lanes (generation + 1); without others: RECOVERING until
//                      somebody comes, in the same lineage, since the shards hold the version
//   a shard is lost    RECOVERING; a new lineage from the last manifest, counted as a restart
//   a shard leaves     as a suspend; a new lineage from that version, no restart (core_leave.cc)
//   the task of a local job is lost   PENDING, back-off, a new lineage from the last manifest
//   suspend            an order; its version is committed, the gang given back: SUSPENDED
//
// Deterministic: same options, same events, same effects. Not thread-safe: one strand per object.
#ifndef CAPSTAN_COORDINATOR_CORE_CORE_H_
#define CAPSTAN_COORDINATOR_CORE_CORE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/job_record.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/node_table.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

// How a member was lost.
struct Loss {
  std::string why;  // a sentence
  std::string reason = "WorkerLost";
  bool lapsed = false;    // its lease, and nothing else is known
  bool goodbye = false;   // its service ended itself, or had said that it would
  bool reported = false;  // its task said `reason`
  bool drained = false;   // it is well, but its node is drained
};

// Which jobs are asked for; what is empty asks for all.
struct JobFilter {
  std::set<common::v1::JobState> states;
  std::string owner;
  std::map<std::string, std::string> labels;  // all of these
};

class CoordinatorCore {
 public:
  // `options.validate` and `options.resolve` are set.
  explicit CoordinatorCore(CoreOptions options);

  // Once, before the first Step: goes on from what a coordinator before this one made durable. For
  // one lease nobody is taken for lost. The first event is a Restored then. DataLoss: a record is
  // not what was written.
  absl::Status Restore(const DurableState& state, absl::Duration now, absl::Time wall);

  // `now` never goes back. Between two steps lie at most NextDeadline's times: a larger gap means
  // that this process itself was held up, and then nobody's lease is shortened by it.
  Effects Step(const Event& event, absl::Duration now);

  // When Step(Tick) is due; InfiniteDuration: no time of ours runs.
  absl::Duration NextDeadline() const;

  // NotFound: no such job (any more).
  absl::StatusOr<job::v1::Job> GetJob(absl::string_view job_id) const;
  // The newest of those that `filter` asks for, newest first, without events and epochs; with
  // `before`, of those whose sequence is lower.
  std::vector<job::v1::Job> ListJobs(int limit, const JobFilter& filter,
                                     int64_t before = std::numeric_limits<int64_t>::max()) const;
  // The job's log, or null. Valid until the next Step.
  const LogBuffer* Logs(absl::string_view job_id) const;
  // False for unknown jobs.
  bool HasEnded(absl::string_view job_id) const;
  // NotFound: no such job, or it has no files yet. Unauthenticated: the holder is not, or not now, of
  // its view. Of a job that has ended, only lines of its log are still taken.
  absl::StatusOr<FileGrant> GrantFiles(absl::string_view job_id, const FileHolder& holder) const;
  // Jobs that have not ended, by their ids: where their manifests lie, or will.
  std::vector<std::pair<std::string, std::string>> StoragePaths() const;
  // All about a job, or null. Valid until the next Step.
  const JobRecord* Peek(absl::string_view job_id) const { return FindJob(job_id); }
  // Oldest first.
  void ForEachJob(const std::function<void(const JobRecord&)>& visit) const;
  const NodeTable& nodes() const { return nodes_; }
  const CoreOptions& options() const { return options_; }

 private:
  // core.cc
  void Handle(const Tick&);
  void Handle(const Submit& submit);
  void Handle(const Cancel& cancel);
  absl::Status Admit(const Submit& submit, job::v1::SubmitJobResponse* response);
  std::string NewJobId(const std::string& name);
  // Where one pass through the queue has got to.
  struct Queue {
    size_t places = 0;                         // jobs that wait so far
    std::string blocked_by;                    // holds up all behind it; empty: nobody does
    std::map<GangRequest, std::string> lacks;  // what was tried in vain: a sentence
    absl::Duration next_retry = absl::InfiniteDuration();  // of those that back off
  };
  void Schedule();
  void TryJob(JobRecord& job, Queue* queue);
  void StartGang(JobRecord& job, const Gang& gang, const std::string& kind);
  bool AllExpectedAreThere() const;
  void ForgetOldJobs();
  void ForgetEnded(size_t index);  // of ended_
  // core_expiry.cc
  void ForgetExpiredJobs();
  bool RemoveCheckpoints(JobRecord& job);
  void BoundLogs();
  // Of the ended jobs that have some of it: the oldest one of the owner who has most of all.
  size_t OldestOfTheGreatest(const std::function<int64_t(const JobRecord&)>& share) const;
  // That path lies in the folder of a job: its id; else empty.
  std::string JobWhoseFolderHolds(const std::string& path) const;
  void SaveJobs();
  void Emit(Effect effect) { effects_.push_back(std::move(effect)); }
  void Changed(const JobRecord& job) { changed_.insert(job.id); }
  JobRecord* FindJob(absl::string_view job_id);
  const JobRecord* FindJob(absl::string_view job_id) const;

  // core_restore.cc
  void Handle(const Restored& restored);
  void GoOn(JobRecord& job);
  void SayUnread(JobRecord& job);
  std::string StoragePath(const JobRecord& job) const;
  void PlaceMembers(JobRecord& job, bool surely);
  void TakeManifest(JobRecord& job, const FoundManifest& found);
  void BeginAbove(JobRecord& job, int64_t lineage, const std::string& who);

  // core_nodes.cc
  void Handle(const NodeConnected& connected);
  void Handle(const NodeMessage& message);
  void Handle(const NodeDisconnected& disconnected);
  void OnHeartbeat(Node& node, const node::v1::Heartbeat& heartbeat);
  void OnProbeResult(Node& node, const node::v1::ProbeResult& result);
  void OnLogs(Node& node, const node::v1::LogBatch& batch);
  void TaskFailed(JobRecord& job, Rank& rank);
  void ShardFailed(JobRecord& job, Shard& shard);
  void AcceptTask(JobRecord& job, Rank& rank, const node::v1::TaskState& state);
  void AcceptShard(JobRecord& job, Shard& shard, const node::v1::ShardState& state);
  void TakeLead(JobRecord& job, const node::v1::LeadState& lead);
  void NoteSkipped(JobRecord& job, const node::v1::LeadState& lead);
  void NoteSlowReaders(JobRecord& job, const node::v1::LeadState& lead);
  void SettleMembers(Node& node, JobRecord& job);
  void StopStray(Node& node, const std::string& job_id, bool is_task);
  bool Spared(const Node& node, const std::string& job_id);
  static void HoldFree(Node& node, const std::string& unknown_job);
  void ExpireLeases();
  void LoseNode(Node& node, const Loss& how);
  void FreeSlots(Node& node, const std::string& job_id);
  void FreeSlotsOfTheGone(Node& node, const JobRecord& job);
  void ExcludeStrays(const JobRecord& job, GangRequest& request) const;

  // core_jobs.cc
  void Advance(JobRecord& job);
  void AdvanceProbe(JobRecord& job);
  void AdvanceTakeover(JobRecord& job);
  void AdvanceStart(JobRecord& job);
  bool InManifestLimit(const JobRecord& job) const;
  void AdvanceCancel(JobRecord& job);
  void ResolveJob(JobRecord& job, const common::v1::DatasetInfo& dataset);
  std::string StorageRoot(const job::v1::JobSpec& spec) const;
  void Requeue(JobRecord& job, const std::string& why);
  void CheckWaiting(JobRecord& job);
  std::vector<int64_t> ProgressMark(const JobRecord& job) const;
  void SetState(JobRecord& job, common::v1::JobState state, const std::string& reason,
                const std::string& message);
  void Fail(JobRecord& job, const std::string& reason, const std::string& message);
  void End(JobRecord& job, common::v1::JobState state, const std::string& reason,
           const std::string& message);

  // core_checkpoints.cc
  void Handle(const ManifestWritten& written);
  void TakeFiles(JobRecord& job, int32_t shard, const node::v1::WrittenFiles& files);
  void AdvanceCheckpoints(JobRecord& job);
  void OrderManifest(JobRecord& job, int64_t step);
  void Commit(JobRecord& job);
  void Prune(JobRecord& job);
  void CheckpointFailed(JobRecord& job, int64_t step, const std::string& why);
  void SendFilesTaken(JobRecord& job);

  // core_delete.cc
  void Order(JobRecord& job, const job::v1::DeleteCheckpointRequest& request, Reply& reply);
  void Handle(const CheckpointRemoved& removed);
  absl::Status CheckInitialWeights(const Submit& submit) const;
  absl::Status CheckLinkedWeights(const Submit& submit, const std::string& place) const;
  std::string WhoBeginsFrom(const JobRecord& job, const std::string& checkpoint) const;
  void RemoveDeleted(const JobRecord& job);

  // core_lineage.cc
  void BeginLineage(JobRecord& job, const std::vector<int32_t>& owners);
  void RecoverTheLost(JobRecord& job);
  void BeginRecovery(JobRecord& job, const std::string& reason, const std::string& why);
  // False: the job has failed by it.
  bool CountRestart(JobRecord& job, const std::string& reason, const std::string& why);
  void ForgiveRestarts(JobRecord& job);
  void AdvanceRecovery(JobRecord& job);
  bool ReplaceShards(JobRecord& job);
  // Homes for the lost shards and for those of `going`. False: some would have none.
  bool FindHomes(const JobRecord& job, const std::set<int32_t>& going,
                 std::map<int32_t, Node*>* homes);
  void RefuseBase(JobRecord& job, const std::string& why);
  void RecoverFreely(JobRecord& job, const std::string& reason, const std::string& why);
  void LoseRank(JobRecord& job, Rank& rank, const Loss& loss);
  void LoseShard(JobRecord& job, Shard& shard, const Loss& loss);
  void FindShardAgain(JobRecord& job, Shard& shard);
  void FindRankAgain(JobRecord& job, Rank& rank);
  void Rest(JobRecord& job, common::v1::JobState state, const std::string& reason,
            const std::string& message);

  // core_drain.cc
  void Handle(const SetDrained& drain);
  void ReleaseDrained(JobRecord& job);

  // core_leave.cc
  std::set<int32_t> LeavingShards(const JobRecord& job);
  void AdvanceLeaving(JobRecord& job);
  void LetGo(JobRecord& job, const std::set<int32_t>& leaving);
  void GoOnWithout(JobRecord& job);
  void EndThoseWhoLeft(JobRecord& job);
  static void AnswerHandOvers(JobRecord& job);

  // core_history.cc
  void NotePoint(JobRecord& job);
  void SaveHistory(JobRecord& job);
  void SaveHistories();

  // core_elastic.cc
  void NewGeneration(JobRecord& job, const std::vector<int32_t>& owners, const std::string& type);
  void TakeOverLanes(JobRecord& job);
  void FillRanks(JobRecord& job);
  void AdvanceJoiners(JobRecord& job);
  void NoteStepTime(JobRecord& job, double samples_per_second);
  void ReissueLate(JobRecord& job);

  // core_pace.cc
  void WeighPaces(JobRecord& job);
  void TakeLanes(Rank& rank);
  void BeginTrial(JobRecord& job);
  void EndUnmeasuredTrial(JobRecord& job);

  // core_orders.cc
  void Handle(const Control& control);
  int64_t AddOrder(JobRecord& job, node::v1::Order order, bool hand_over = false);
  void Order(JobRecord& job, const job::v1::SuspendJobRequest& request, Reply& reply);
  void Order(JobRecord& job, const job::v1::ResumeJobRequest& request, Reply& reply);
  void Order(JobRecord& job, const job::v1::RetryJobRequest& request, Reply& reply);
  void Order(JobRecord& job, const job::v1::UpdateJobRequest& request, Reply& reply);
  void Requeued(JobRecord& job, const std::string& type);
  void SealResolved(JobRecord& job);
  void JournalOrders(JobRecord& job, const node::v1::LeadState& lead);
  static void AnswerSuspends(JobRecord& job);
  std::vector<node::v1::Order> OrdersBeyondBase(const JobRecord& job) const;
  void SendOrders(JobRecord& job);
  void AdvanceSuspend(JobRecord& job);

  // core_send.cc
  void SendLacking(JobRecord& job);
  void SendProbes(JobRecord& job);
  void SendView(JobRecord& job);
  void SendKeys(JobRecord& job);
  void WindDown(JobRecord& job);
  void StopRank(JobRecord& job, Rank& rank);
  bool Due(absl::Duration last_sent, absl::Duration every) const {
    return now_ - last_sent >= every;
  }

  const CoreOptions options_;
  std::mt19937_64 random_;
  NodeTable nodes_;
  // Before this no lease ends and no lost node is forgotten; Infinite: there is no such node.
  mutable absl::Duration first_lease_end_ = absl::InfiniteDuration();
  int64_t last_incarnation_ = 0;
  int64_t last_probe_ = 0;

  int64_t last_sequence_ = 0;
  int64_t log_bytes_ = 0;  // of all jobs
  std::map<std::string, std::unique_ptr<JobRecord>, std::less<>> jobs_;
  std::map<int64_t, JobRecord*> by_sequence_;    // all
  std::map<int64_t, JobRecord*> pending_;        // PENDING, oldest first
  std::map<int64_t, JobRecord*> active_;         // has a gang, or something of it may still run
  std::deque<std::string> ended_;                // oldest end first
  std::map<std::string, std::string> requests_;  // request id -> job id
  Queue queue_;                                  // of the last pass
  absl::Duration scheduled_at_ = -absl::InfiniteDuration();
  bool schedule_ = false;                                 // another pass is due
  absl::Duration expiry_at_ = -absl::InfiniteDuration();  // ended jobs are looked at again

  // Of the step being carried out.
  absl::Duration now_;
  absl::Time wall_;
  bool stepped_ = false;
  absl::Duration spare_until_ = -absl::InfiniteDuration();  // what is of unknown jobs
  JobRecord* submitted_ = nullptr;
  Effects effects_;
  std::set<std::string> changed_;
  std::map<std::string, int64_t> log_marks_;  // jobs whose log was seen at this number
  absl::Duration histories_saved_ = -absl::InfiniteDuration();
};

// Why a job or task fails where it gave no reason of its own.
inline constexpr char kInternalError[] = "InternalError";
// Why a job is RECOVERING that goes on without a shard which left on purpose; and its event.
inline constexpr char kShardLeft[] = "ShardLeft";
// The condition of a job whose last checkpoint could not be written.
inline constexpr char kCheckpointDegraded[] = "CHECKPOINT_DEGRADED";
inline constexpr char kInterrupted[] = "Interrupted";  // SUSPENDED by the end of all its services

// limits.active_deadline; InfiniteDuration: none.
absl::Duration DeadlineOf(const JobRecord& job);
// A record that was put back from a copy lacks no more than so many lineages: what is further ahead is
// somebody's invention, and would use the numbers up.
inline constexpr int64_t kMostLineagesAhead = 1 << 20;

// A sentence of another process, short enough to be shown everywhere.
std::string Sentence(const std::string& text);
// Reasons end up in metric labels and scripts: `reason` where interface.md lists it, else kInternalError.
std::string KnownReason(const std::string& reason);

// NotFound: the job has no such checkpoint; names those that it has.
absl::Status NoCheckpoint(const JobRecord& job, absl::string_view checkpoint);

// "checkpoint" of a job: `<storage_path>/<lineage>-<step>`.
std::string CheckpointFolder(const std::string& storage_path, int64_t lineage, int64_t step);

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_CORE_H_
