// What goes into the coordinator's core and what comes out of it.
//
// The core decides and does nothing else: `Step(event, now) -> effects`. `now` is a monotonic time
// since an arbitrary origin, and the only time that decides anything. `Event::wall` is shown to people.
// Effects are carried out in their order. Every Persist of a step stands in front. All of them become
// durable together, and the other effects are carried out after that. So no process and no person is
// told what a crash could take back.
#ifndef CAPSTAN_COORDINATOR_CORE_TYPES_H_
#define CAPSTAN_COORDINATOR_CORE_TYPES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "capstan/common/v1/common.pb.h"
#include "capstan/job/v1/checkpoint_service.pb.h"
#include "capstan/job/v1/job_service.pb.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "capstan/node/v1/node.pb.h"

namespace capstan::coordinator::core {

// One stream of one node, numbered by the adapter from 1, never used again.
using SessionId = int64_t;
// One RPC that waits for a Reply, numbered by the adapter.
using CallId = int64_t;

// Who asks for something.
struct Caller {
  std::string name;  // of the certificate; empty: no certificate was asked for
  bool any_job =
      false;  // may do what the job's owner may: an admin, or any caller if no certificates are asked for
};

// ---- events ----

struct Submit {
  CallId call = 0;
  std::string request_id;
  job::v1::JobSpec spec;
  Caller caller;
  // Where links in model.initial_weights lead to, as the disk says; empty: there is none.
  std::vector<std::string> weights_at;
};
struct Cancel {
  CallId call = 0;
  std::string job_id;
  Caller caller;
};
// SuspendJob, ResumeJob, RetryJob, UpdateJob, MoveShard or DeleteCheckpoint.
struct Control {
  CallId call = 0;
  std::variant<job::v1::SuspendJobRequest, job::v1::ResumeJobRequest, job::v1::RetryJobRequest,
               job::v1::UpdateJobRequest, job::v1::MoveShardRequest,
               job::v1::DeleteCheckpointRequest>
      request;
  Caller caller;
};
// DrainNode or UndrainNode. Answered without a response.
struct SetDrained {
  CallId call = 0;
  std::string node;
  bool drained = false;
};
struct NodeConnected {
  SessionId session = 0;
  node::v1::Register reg;  // with a resume key that is as good as secret: its hash
  bool named = false;      // reg.certificate is of nodes with this name
};
// A Heartbeat, ProbeResult or LogBatch. Anything else closes the session.
struct NodeMessage {
  SessionId session = 0;
  node::v1::ConnectRequest message;
};
// May come twice: as soon as the stream ends, and with `goodbye` when it is known how it ended.
struct NodeDisconnected {
  SessionId session = 0;
  bool goodbye = false;  // the node itself ended the stream: its service stops, with all its tasks
};
// The answer to WriteManifest. DataLoss: a file is not what its writer reported.
struct ManifestWritten {
  std::string job_id;
  int64_t lineage = 0;
  int64_t step = 0;
  absl::Status status;
};
// The answer to RemoveCheckpoint.
struct CheckpointRemoved {
  std::string job_id;
  std::string checkpoint;
  absl::Status status;
};
// The answer to MeasureRoom.
struct RoomMeasured {
  std::string job_id;
  std::string folder;
  int64_t free_bytes = 0;
  int64_t usable_bytes = 0;  // of these, what files may take
};
struct Tick {};
// A manifest that lies in a job's storage_path.
struct FoundManifest {
  int64_t lineage = 0;
  int64_t step = 0;
  std::string spec_digest;  // 32 bytes
  std::string weights_sha256;
  int64_t samples_used = 0;
  std::vector<int64_t> orders;
  std::vector<common::v1::FileInfo> files;
};
// Comes after CoordinatorCore::Restore, once for every job. Until then nothing is decided for one that
// has not ended: what lies in its folder may be its end.
struct Restored {
  // The jobs that it is about. nullopt: all jobs that no other Restored has been about. Ended jobs come
  // first.
  std::optional<std::set<std::string>> jobs;
  // By job; by lineage and step.
  std::map<std::string, std::vector<FoundManifest>> manifests;
  // By job: the highest lineage that a folder in its storage_path is named after.
  std::map<std::string, int64_t> lineages;
};

struct Event {
  absl::Time wall;  // for people only
  std::variant<Tick, Restored, Submit, Cancel, Control, SetDrained, NodeConnected, NodeMessage,
               NodeDisconnected, ManifestWritten, CheckpointRemoved, RoomMeasured>
      what;
};

// ---- durable records ----
//
// State, not history: a record says what is so from now on, and what was said of the same thing
// before is void. What they add up to is a DurableState (journal.h).

// A process got a number of its own. Says what it registered as, for a restart knows it again.
struct IncarnationIssued {
  int64_t incarnation = 0;
  node::v1::Register reg;
};
struct NodeForgotten {
  std::string node;
};
struct NodeDrained {  // or not any more; of a name, whether such a node is there or not
  std::string node;
  bool drained = false;
};
struct JobSaved {
  std::string job_id;
  std::string job;  // serialized coordinator.v1.DurableJob
};
// An event of a job, numbered in the job from 1.
struct EventAdded {
  std::string job_id;
  int64_t number = 0;
  job::v1::Event event;
};
struct EventDropped {  // too many: this one is not kept any more
  std::string job_id;
  int64_t number = 0;
};
struct JobForgotten {  // ended long ago, with its events; its id and its request id are free
  std::string job_id;
};
// A page of a job's MetricHistory. For people alone: nothing waits until it is durable.
struct HistoryPage {
  std::string job_id;
  int64_t number = 0;
  std::string page;  // empty: this page is not there any more
};

using Record = std::variant<IncarnationIssued, NodeForgotten, JobSaved, EventAdded, EventDropped,
                            JobForgotten, HistoryPage, NodeDrained>;

// ---- effects ----

struct Persist {
  Record record;
};
struct Send {
  SessionId session = 0;
  node::v1::ConnectResponse message;
};
struct CloseSession {
  SessionId session = 0;
  absl::Status status;
};
struct Reply {
  CallId call = 0;
  absl::Status status;  // not OK: `response` is not set
  std::variant<std::monostate, job::v1::SubmitJobResponse, job::v1::CancelJobResponse,
               job::v1::SuspendJobResponse, job::v1::ResumeJobResponse, job::v1::RetryJobResponse,
               job::v1::UpdateJobResponse, job::v1::MoveShardResponse,
               job::v1::DeleteCheckpointResponse>
      response;
};
// Write `<folder>/manifest.json` for these files, then answer with ManifestWritten. The same
// manifest may be asked for again; a folder that has it already is OK.
struct WriteManifest {
  std::string job_id;
  int64_t lineage = 0;
  int64_t step = 0;
  std::string folder;  // absolute: <storage_path>/<lineage>-<step>
  std::string spec_digest_hex;
  std::string training_digest_hex;
  std::vector<common::v1::FileInfo> files;  // by name
  std::string weights_sha256;
  std::string optimizer;
  int64_t samples_used = 0;
  std::vector<int64_t> orders;  // ids of the orders applied so far
  std::string lead_snapshot;    // serialized node.v1.LeadSnapshot
};
// Remove what lies in `storage_path` as a checkpoint and is none: each folder `<l>-<s>` with (l, s)
// below (lineage, step), the newest committed one, that `keep` does not name. Behind all
// WriteManifests so far and before all that follow. Not answered; what could not be removed goes
// with a later one.
struct SweepCheckpoints {
  std::string job_id;
  std::string storage_path;
  int64_t lineage = 0;
  int64_t step = 0;
  std::vector<std::string> keep;  // `<l>-<s>`
};
// Remove the folder of a checkpoint that a person has deleted, then answer with CheckpointRemoved. In
// line with WriteManifest and SweepCheckpoints. Comes again after a restart until it was answered.
struct RemoveCheckpoint {
  std::string job_id;
  std::string storage_path;
  std::string checkpoint;  // `<l>-<s>`
};
// See what is free where the job's folder is to lie, which may not be there yet, and answer with
// RoomMeasured. For people: nothing waits for it, and it may stay without an answer.
struct MeasureRoom {
  std::string job_id;
  std::string folder;
};
// A node has a task or chunks of a job that is not in the journal. They are spared for a while: it
// may be the journal that is not the right one.
struct TaskSpared {
  std::string node;
  std::string job_id;
  absl::Duration left;  // until they are stopped
};
// A job, or its log, is not what it was. At most one of each per job and Step, behind all others.
struct JobChanged {
  std::string job_id;
  bool new_state = false;       // or a new job
  bool new_generation = false;  // or its first view
};
struct LogsAppended {
  std::string job_id;
};

using Effect = std::variant<Persist, Send, CloseSession, Reply, WriteManifest, SweepCheckpoints,
                            RemoveCheckpoint, MeasureRoom, JobChanged, LogsAppended, TaskSpared>;
using Effects = std::vector<Effect>;

// ---- settings ----

// Who writes and reads files of a job: a shard, or a task.
struct FileHolder {
  bool shard = false;  // false: a task
  int32_t index = 0;   // of the shard, or rank
  int64_t incarnation = 0;
};
// What a holder may do with them.
struct FileGrant {
  std::string storage_path;
  int64_t lineage = 0;  // of files that are written
  int64_t settled_step = -1;
  int64_t total_steps = 0;
  std::vector<std::string> may_write;  // names
  int64_t max_file_bytes = 0;
  bool may_log = false;         // metrics.jsonl
  std::string initial_weights;  // of the spec; empty: none
};

struct CoreOptions {
  absl::Duration lease = absl::Seconds(5);
  absl::Duration heartbeat = absl::Seconds(1);
  // An order is sent again to the same target after this, until the target's state shows it.
  absl::Duration resend = absl::Milliseconds(500);
  absl::Duration probe_resend = absl::Seconds(5);
  // Losses of workers within this are one new generation.
  absl::Duration takeover_batch = absl::Milliseconds(50);
  // From SIGTERM to SIGKILL of a task.
  absl::Duration stop_grace = absl::Seconds(10);
  // So long after Restore nodes keep what they hold of jobs that the journal does not know.
  absl::Duration unknown_jobs_spared = absl::Minutes(1);
  // A task that a living node still reports so long after its grace no longer holds up a cancelled
  // job.
  absl::Duration stop_limit = absl::Seconds(30);
  // A job that waits longer says what it waits for. With the time of heartbeats that is within 10 s.
  absl::Duration say_waiting_after = absl::Seconds(6);
  absl::Duration manifest_retry = absl::Seconds(1);
  int manifest_attempts = 5;
  // So long a disk may take over a manifest; then the limits of the job count and it can be
  // cancelled, although what is on disk is not known.
  absl::Duration manifest_limit = absl::Minutes(2);
  // A lane that a living worker has not sealed so long after the others, or 3 x the median step, is
  // issued again; one that the lead says is late at once (exchange/shard/lane_times.h).
  absl::Duration late_lane = absl::Seconds(2);
  // The paces of workers are weighed over so long, and lanes move when they were uneven twice.
  absl::Duration weigh_paces = absl::Seconds(1);
  // Before a node whose task failed gets another one of the same job; doubles with each failure,
  // and begins anew once a task has worked for so long.
  absl::Duration rejoin_delay = absl::Seconds(1);
  absl::Duration rejoin_forgiven = absl::Seconds(30);
  // A drained node's shard may take so long to hand its job over; then the job goes on from the
  // checkpoint that it has. One whose service stops says how long it stays.
  absl::Duration hand_over_limit = absl::Minutes(2);
  // A job that is beyond the step at which it was last restarted, and has run for so long since
  // then, has all of its restarts before it again.
  absl::Duration restarts_forgiven = absl::Minutes(10);
  // Before a lane is given back to a worker that was late or slow; doubles with each time, and is
  // this again once the worker has kept up for five times this, and for as long as it last waited.
  absl::Duration give_back = absl::Seconds(2);
  int max_changes = 1000;  // of one job

  int max_queued_jobs = 10000;  // not ended
  int max_ended_jobs = 1000;    // kept for people to look at
  int max_nodes = 10000;
  // A lost node is kept for so long, for people to look at, and longer while a job waits for what it
  // holds.
  absl::Duration lost_node_kept = absl::Hours(1);
  // So many nodes come and no more, as in `capstan run`: a job that these could not carry, were they
  // free, fails at once. 0: any number may come.
  int expected_nodes = 0;
  int64_t max_spec_bytes = 128 * 1024;             // ResNet-152 as a graph has 60 KiB
  int max_log_lines = 10000;                       // of one job
  int64_t max_log_bytes = int64_t{8} << 20;        // of one job
  int64_t max_all_log_bytes = int64_t{256} << 20;  // beyond: the oldest ended jobs lose theirs
  int max_events = 1000;                           // of one job
  int max_history_points = 2000;                   // of a job that has not ended
  int max_ended_history_points = 500;              // of one that has
  // What a crash may take away of the histories of metrics.
  absl::Duration history_save = absl::Seconds(10);

  // What StartLineage and StartTask say of it; null: nothing. Pure.
  std::function<std::string(const std::string& job_id, const FileHolder& holder)> files_key;

  // Whether a path lies under a data root of the coordinator, by its name; null: all do. Pure.
  std::function<bool(const std::string& path)> is_data;

  // The id of the one job that this coordinator takes; empty: it takes any. Its services end with the
  // coordinator, as in `capstan run`: Restore knows no node, and a job that had a gang is SUSPENDED.
  std::string only_job;

  std::string storage_root;  // absolute folder, where a spec names none
  uint64_t seed = 0;         // of the random letters in job ids

  // InvalidArgument: the spec breaks a rule. Pure.
  std::function<absl::Status(const job::v1::JobSpec&)> validate;
  // `storage_root` is the absolute folder under which the job's own folder comes to lie. Pure.
  std::function<absl::StatusOr<job::v1::ResolvedSpec>(
      const job::v1::JobSpec& spec, const common::v1::DatasetInfo& dataset,
      const std::string& job_id, const std::string& storage_root)>
      resolve;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_TYPES_H_
