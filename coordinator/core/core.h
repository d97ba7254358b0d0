// The coordinator without its threads, clocks, files and wires: jobs, gangs, views, leases.
//
//   PENDING   until a whole gang is free          probe -> resolve -> view 1.1
//   STARTING  StartLineage to the shards; when all hold their chunks, StartTask to the workers
//   RUNNING   from the first step decided, or when all tasks run
//   the end   lead complete + files of all shards + weights.safetensors -> manifest -> SUCCEEDED
//
// Nothing here waits for an answer. Every heartbeat and every Tick compares what nodes report with what is
// wanted, and sends whatever is missing, to one target at most every `resend`. So lost, late and repeated
// messages change nothing. A fact is durable before any process is told. Shards are told before workers.
//
//   a worker is lost   the others get its lanes (generation + 1); without others: RECOVERING until
//                      another one comes, in the same lineage, since the shards hold the version
//   a shard is lost    RECOVERING; a new lineage from the last manifest, counted as a restart
//   a shard leaves     as a suspend; a new lineage from that version, no restart (departures.h)
//   shards are moved   likewise, without leaving RUNNING (shard_mover.h)
//   the task of a local job is lost   PENDING, back-off, a new lineage from the last manifest
//   suspend            an order; its version is committed, the gang given back: SUSPENDED
//
// An event costs the same however many other jobs run, because JobTable keeps indexes over all of them.
// Only Tick, Restored and a drain look at each active job.
//
// CoordinatorCore only hands each event to the part that it is about, and collects the effects.
//
// Deterministic: same options, same events, same effects. Not thread-safe: one strand per object.
#ifndef CAPSTAN_COORDINATOR_CORE_CORE_H_
#define CAPSTAN_COORDINATOR_CORE_CORE_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/change_desk.h"
#include "coordinator/core/checkpoint_desk.h"
#include "coordinator/core/core_context.h"
#include "coordinator/core/departures.h"
#include "coordinator/core/forgetting.h"
#include "coordinator/core/gang_filler.h"
#include "coordinator/core/generations.h"
#include "coordinator/core/heartbeats.h"
#include "coordinator/core/job.h"
#include "coordinator/core/job_folders.h"
#include "coordinator/core/job_queue.h"
#include "coordinator/core/job_run.h"
#include "coordinator/core/job_states.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/journaling.h"
#include "coordinator/core/lane_dealer.h"
#include "coordinator/core/losses.h"
#include "coordinator/core/member_reports.h"
#include "coordinator/core/node_desk.h"
#include "coordinator/core/node_table.h"
#include "coordinator/core/pace_dealer.h"
#include "coordinator/core/reasons.h"
#include "coordinator/core/recoveries.h"
#include "coordinator/core/restorer.h"
#include "coordinator/core/sender.h"
#include "coordinator/core/shard_mover.h"
#include "coordinator/core/submissions.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

// Which jobs are asked for. An empty field asks for all.
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
  // one lease no node is taken for lost. The first event is a Restored then. DataLoss: a record is
  // not what was written.
  absl::Status Restore(const DurableState& state, absl::Duration now, absl::Time wall);

  // `now` never goes back. Between two steps lie at most NextDeadline's times: a larger gap means
  // that this process itself was held up, and then no lease is shortened by it.
  Effects Step(const Event& event, absl::Duration now);

  // When Step(Tick) is due; InfiniteDuration: no time of ours runs.
  absl::Duration NextDeadline() const;

  // NotFound: no such job (any more).
  absl::StatusOr<job::v1::Job> GetJob(absl::string_view job_id) const;
  // The newest jobs that `filter` asks for, newest first, without events and epochs. With `before`,
  // only jobs whose sequence is lower.
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
  const Job* Peek(absl::string_view job_id) const { return ctx_.jobs().Find(job_id); }
  // Oldest first.
  void ForEachJob(const std::function<void(const Job&)>& visit) const;
  const NodeTable& nodes() const { return ctx_.nodes(); }
  const CoreOptions& options() const { return ctx_.options(); }

 private:
  template <typename What>
  void Handle(const What& what);

  CoreContext ctx_;
  bool stepped_ = false;
  // In this order: each borrows some of those before it.
  JobStates states_{ctx_};
  JobFolders folders_{ctx_};
  CheckpointDesk checkpoints_{ctx_, states_, folders_};
  ShardMover mover_{ctx_, states_};
  Recoveries recoveries_{ctx_, states_, mover_};
  Losses losses_{ctx_, states_, recoveries_};
  Generations generations_{ctx_};
  PaceDealer pace_{ctx_, generations_};
  LaneDealer lanes_{ctx_, generations_, pace_, losses_};
  Sender sender_{ctx_, states_};
  GangFiller filler_{ctx_, sender_};
  Departures departures_{ctx_, states_, recoveries_, losses_};
  MemberReports reports_{ctx_, states_, recoveries_, losses_, checkpoints_};
  JobRun run_{ctx_,  states_, folders_, checkpoints_, recoveries_, generations_,
              pace_, lanes_,  sender_,  filler_,      departures_};
  JobQueue queue_{ctx_, states_, filler_, run_};
  Heartbeats heartbeats_{ctx_, states_, recoveries_, losses_, reports_, run_};
  mutable NodeDesk node_desk_{ctx_, losses_, run_, heartbeats_, departures_};
  ChangeDesk changes_{ctx_, states_, folders_, mover_, run_};
  Forgetting forgetting_{ctx_, folders_};
  Submissions submissions_{ctx_, folders_, run_};
  Journaling journaling_{ctx_};
  Restorer restorer_{ctx_, states_, folders_, checkpoints_, recoveries_, losses_, run_};
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_CORE_H_
