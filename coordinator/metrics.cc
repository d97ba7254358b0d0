#include "coordinator/metrics.h"

#include <algorithm>
#include <iterator>

#include "absl/time/clock.h"
#include "coordinator/core/cards.h"
#include "coordinator/core/scheduling.h"
#include "services/timestamp/timestamp.h"
#include "training/spec/validate.h"

namespace capstan::coordinator {
namespace {

constexpr char kQueue[] = "default";

constexpr common::v1::JobState kStates[] = {
    common::v1::JOB_STATE_PENDING,   common::v1::JOB_STATE_STARTING,
    common::v1::JOB_STATE_RUNNING,   common::v1::JOB_STATE_RECOVERING,
    common::v1::JOB_STATE_SUSPENDED, common::v1::JOB_STATE_SUCCEEDED,
    common::v1::JOB_STATE_FAILED,    common::v1::JOB_STATE_CANCELLED};

// The events of the alerts. Their series exist before the first such event.
constexpr const char* kEvents[] = {"Submitted",       "Started",          "WorkerLost", "ShardLost",
                                   "CheckpointSaved", "CheckpointFailed", "Failed"};

std::string StateName(common::v1::JobState state) {
  return common::v1::JobState_Name(state).substr(sizeof("JOB_STATE_") - 1);
}

// Events at which a gang forms or continues; no step was due before them.
constexpr const char* kBegins[] = {"Admitted", "LineageStarted", "Started", "Recovered"};

double UnixSeconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

}  // namespace

CoordinatorMetrics::CoordinatorMetrics(services::MetricsRegistry& registry)
    : registry_(registry),
      jobs_(registry.Gauge("capstan_jobs", "Number of jobs known to the coordinator by state.",
                           {"queue", "state"})),
      submitted_(registry.Counter("capstan_jobs_submitted_total", "Jobs accepted by SubmitJob.",
                                  {"queue"})),
      rejected_(registry.Counter("capstan_jobs_rejected_total",
                                 "Submissions refused: invalid_spec, already_exists or quota.",
                                 {"queue", "reason"})),
      finished_(registry.Counter("capstan_jobs_finished_total",
                                 "Jobs that reached a terminal state.",
                                 {"queue", "state", "reason"})),
      restarts_(registry.Counter("capstan_job_restarts_total", "Automatic restarts of whole jobs.",
                                 {"queue", "reason"})),
      queue_wait_(registry.Histogram("capstan_job_queue_wait_seconds",
                                     "Time from submission to all workers assigned.",
                                     services::LongBuckets(), {"queue"})),
      run_duration_(registry.Histogram("capstan_job_run_duration_seconds",
                                       "Time from first assignment to terminal state.",
                                       services::LongBuckets(), {"queue", "state"})),
      quota_slots_(registry.Gauge("capstan_queue_quota_slots",
                                  "GPU (or CPU) slots the queue may use.", {"queue"})),
      allocated_slots_(registry.Gauge("capstan_queue_allocated_slots",
                                      "Slots held by running jobs.", {"queue"})),
      pending_slots_(registry.Gauge("capstan_queue_pending_slots",
                                    "Slots asked for by pending jobs.", {"queue"})),
      workers_(
          registry.Gauge("capstan_workers", "Registered worker processes by state.", {"state"})),
      heartbeat_(registry.Gauge("capstan_worker_last_heartbeat_timestamp_seconds",
                                "Unix time of the last heartbeat received from the worker.",
                                {"worker"})),
      info_(registry.Gauge("capstan_job_info",
                           "Job metadata for joins, value is always 1; `user` is the job's owner, "
                           "empty without TLS.",
                           {"job_id", "job_name", "queue", "user", "model", "dataset", "kvstore"})),
      state_(registry.Gauge("capstan_job_state",
                            "1 for the current state of the job, 0 for the others.",
                            {"job_id", "state"})),
      progress_(registry.Gauge("capstan_job_progress_ratio",
                               "Completed steps divided by planned steps.", {"job_id"})),
      step_(registry.Gauge("capstan_job_global_step",
                           "Steps applied to the model so far (falls back after a restore).",
                           {"job_id"})),
      epoch_(registry.Gauge("capstan_job_epoch", "Current epoch, fractional.", {"job_id"})),
      start_time_(registry.Gauge("capstan_job_start_timestamp_seconds",
                                 "Unix time of the first assignment.", {"job_id"})),
      progress_time_(registry.Gauge("capstan_job_last_progress_timestamp_seconds",
                                    "Unix time of the last finished step, or of the gang's or the "
                                    "coordinator's start where that is later.",
                                    {"job_id"})),
      end_time_(registry.Gauge("capstan_job_expected_end_timestamp_seconds",
                               "Predicted completion (unix time).", {"job_id"})),
      stall_timeout_(registry.Gauge("capstan_job_stall_timeout_seconds",
                                    "Time without progress after which the job fails.",
                                    {"job_id"})),
      loss_(registry.Gauge("capstan_job_loss", "Last reported loss.", {"job_id", "split"})),
      accuracy_(registry.Gauge("capstan_job_accuracy_ratio", "Last reported accuracy, 0 to 1.",
                               {"job_id", "split"})),
      learning_rate_(
          registry.Gauge("capstan_job_learning_rate", "Current learning rate.", {"job_id"})),
      lineage_(registry.Gauge("capstan_job_lineage",
                              "Generation in which the present history began.", {"job_id"})),
      generation_(registry.Gauge("capstan_job_generation",
                                 "Grows by 1 whenever owners of lanes change.", {"job_id"})),
      takeovers_(registry.Counter("capstan_job_takeovers_total",
                                  "Times that lanes went to other workers.", {"job_id"})),
      samples_(registry.Counter("capstan_job_samples_applied_total",
                                "Training samples of decided steps, by the lead.", {"job_id"})),
      nonfinite_(registry.Counter("capstan_job_nonfinite_steps_total",
                                  "Steps that were skipped for a NaN or Inf in loss or gradient.",
                                  {"job_id"})),
      lost_lines_(registry.Counter(
          "capstan_job_log_lines_dropped_total",
          "Log lines that are gone: pushed out of the buffer, or held back by a node.",
          {"job_id"})),
      events_(registry.Counter("capstan_job_events_total", "What happened to jobs, by its kind.",
                               {"event"})),
      checkpoint_time_(registry.Gauge("capstan_job_last_checkpoint_timestamp_seconds",
                                      "Unix time of the last committed checkpoint.", {"job_id"})),
      stores_(registry.Gauge("capstan_param_stores",
                             "Registered parameter store processes by state.", {"state"})),
      store_heartbeat_(registry.Gauge(
          "capstan_param_store_last_heartbeat_timestamp_seconds",
          "Unix time of the last heartbeat received from the parameter store.", {"param_store"})),
      leases_lost_(registry.Counter("capstan_node_leases_lost_total",
                                    "Nodes that were not heard for a lease.", {"role"})),
      commit_family_(registry.Histogram("capstan_journal_commit_duration_seconds",
                                        "Time to make what was decided durable.",
                                        services::LatencyBuckets())),
      commit_(commit_family_.With({})),
      disk_family_(registry.Gauge(
          "capstan_state_disk_full",
          "1 while the disk of the state folder is full: jobs go on, reads and cancels are "
          "answered, other changes are refused.")),
      disk_(disk_family_.With({})) {
  for (const common::v1::JobState state : kStates) {
    jobs_.With({{"queue", kQueue}, {"state", StateName(state)}}).Set(0);
  }
  submitted_.With({{"queue", kQueue}});
  for (const char* reason : {"invalid_spec", "already_exists", "quota"}) {
    rejected_.With({{"queue", kQueue}, {"reason", reason}});
  }
  for (const char* state : {"SUCCEEDED", "CANCELLED"}) {
    finished_.With({{"queue", kQueue}, {"state", state}, {"reason", ""}});
  }
  for (const char* reason : {"WorkerLost", "ShardLost"}) {
    restarts_.With({{"queue", kQueue}, {"reason", reason}});
  }
  queue_wait_.With({{"queue", kQueue}});
  for (const char* state : {"SUCCEEDED", "FAILED", "CANCELLED"}) {
    run_duration_.With({{"queue", kQueue}, {"state", state}});
  }
  for (const services::GaugeFamily* slots : {&quota_slots_, &allocated_slots_, &pending_slots_}) {
    slots->With({{"queue", kQueue}}).Set(0);
  }
  for (const char* state : {"ready", "lost", "left"}) {
    workers_.With({{"state", state}}).Set(0);
    stores_.With({{"state", state}}).Set(0);
  }
  for (const char* role : {"worker", "param_store"}) leases_lost_.With({{"role", role}});
  for (const char* event : kEvents) events_.With({{"event", event}});
}

void CoordinatorMetrics::OnCommit(absl::Duration took) {
  commit_.Observe(absl::ToDoubleSeconds(took));
}

void CoordinatorMetrics::OnDisk(bool full) { disk_.Set(full ? 1 : 0); }

void CoordinatorMetrics::OnRejected(const absl::Status& status) {
  const char* reason = absl::IsAlreadyExists(status)       ? "already_exists"
                       : absl::IsResourceExhausted(status) ? "quota"
                                                           : "invalid_spec";
  rejected_.With({{"queue", kQueue}, {"reason", reason}}).Increment();
}

prometheus::Gauge& CoordinatorMetrics::Jobs(common::v1::JobState state) const {
  return jobs_.With({{"queue", kQueue}, {"state", StateName(state)}});
}

void CoordinatorMetrics::OnRestored(const core::Job& job) {
  JobSeries& series = known_[job.id()];
  series.state = job.state();
  series.started_at = job.standing().started_at();
  series.samples = job.history().samples_used();
  series.nonfinite = job.lead().skipped_steps();
  series.event = job.events().last_number();
  series.restarts = job.restarts().count();
  for (const auto& entry : job.events()) NoteTimes(entry.event, series);
  // The record does not have its last steps, and the core also counts the stall from now on.
  series.begun_at = absl::Now();
  Jobs(job.state()).Increment();
  OnJob(job);
}

void CoordinatorMetrics::OnForgotten(const std::string& job_id) {
  const auto it = known_.find(job_id);
  if (it == known_.end()) return;
  Jobs(it->second.state).Decrement();
  SetPendingSlots(it->second, 0);
  known_.erase(it);
}

void CoordinatorMetrics::OnState(const core::Job& job, JobSeries& series) {
  if (series.started_at == absl::InfinitePast() &&
      job.standing().started_at() != absl::InfinitePast()) {
    series.started_at = job.standing().started_at();
    queue_wait_.With({{"queue", kQueue}})
        .Observe(
            absl::ToDoubleSeconds(job.standing().started_at() - job.standing().submitted_at()));
  }
  if (job.state() == series.state) return;
  Jobs(series.state).Decrement();
  Jobs(job.state()).Increment();
  series.state = job.state();
  if (!job.ended()) return;
  finished_
      .With({{"queue", kQueue},
             {"state", StateName(job.state())},
             {"reason", job.standing().reason()}})
      .Increment();
  if (job.standing().started_at() != absl::InfinitePast()) {
    run_duration_.With({{"queue", kQueue}, {"state", StateName(job.state())}})
        .Observe(absl::ToDoubleSeconds(job.standing().finished_at() - job.standing().started_at()));
  }
}

void CoordinatorMetrics::OnJob(const core::Job& job) {
  const auto [it, fresh] = known_.try_emplace(job.id());
  JobSeries& series = it->second;
  if (fresh) {
    submitted_.With({{"queue", kQueue}}).Increment();
    series.state = common::v1::JOB_STATE_PENDING;
    Jobs(series.state).Increment();
  }
  OnState(job, series);
  OnEvents(job, series);
  OnRestarts(job, series);
  int64_t pending = 0;
  if (job.state() == common::v1::JOB_STATE_PENDING) {
    const scheduler::GangRequest request = core::RequestOf(job.spec());
    pending = int64_t{request.num_workers} * request.devices_per_worker;
  }
  SetPendingSlots(series, pending);
  // Series exist from the gang to the end. A long queue would make many that say nothing.
  if (job.standing().started_at() == absl::InfinitePast()) return;
  const bool ended = job.ended();
  if (ended && !series.started) return;  // its series are retired already
  const prometheus::Labels id = {{"job_id", job.id()}};
  if (!series.started) {
    series.started = true;
    job::v1::JobSpec spec = job.resolved().has_value() ? job.resolved()->spec() : job.spec();
    training::spec::FillDefaults(spec);
    info_
        .With({{"job_id", job.id()},
               {"job_name", job.spec().name()},
               {"queue", kQueue},
               {"user", job.owner()},
               {"model", training::spec::ModelTitle(job.spec().model())},
               {"dataset", job.spec().data().format()},
               {"kvstore", spec.kvstore().type()}})
        .Set(1);
    start_time_.With(id).Set(UnixSeconds(job.standing().started_at()));
    stall_timeout_.With(id).Set(absl::ToDoubleSeconds(job.StallTimeout()));
  }
  for (const common::v1::JobState state : kStates) {
    state_.With({{"job_id", job.id()}, {"state", StateName(state)}})
        .Set(state == job.state() ? 1 : 0);
  }
  const job::v1::Progress& progress = job.history().progress();
  step_.With(id).Set(static_cast<double>(progress.step()));
  if (progress.total_steps() > 0) {
    progress_.With(id).Set(static_cast<double>(progress.step()) /
                           static_cast<double>(progress.total_steps()));
  }
  if (job.resolved().has_value() && job.resolved()->steps_per_epoch() > 0) {
    epoch_.With(id).Set(static_cast<double>(progress.step()) /
                        static_cast<double>(job.resolved()->steps_per_epoch()));
  }
  absl::Time moved_at = std::max(job.standing().started_at(), series.begun_at);
  if (progress.has_updated_at()) {
    const absl::Time updated_at = TimeOf(progress.updated_at());
    moved_at = std::max(moved_at, updated_at);
    if (progress.has_eta_seconds()) {
      end_time_.With(id).Set(UnixSeconds(updated_at) + progress.eta_seconds());
    }
  }
  progress_time_.With(id).Set(UnixSeconds(moved_at));
  // Also the time from before a restart or a retry, so that the age is known if no checkpoint
  // follows.
  if (series.saved_at != absl::InfinitePast()) {
    checkpoint_time_.With(id).Set(UnixSeconds(series.saved_at));
  }
  if (progress.has_loss())
    loss_.With({{"job_id", job.id()}, {"split", "train"}}).Set(progress.loss());
  if (progress.has_accuracy()) {
    accuracy_.With({{"job_id", job.id()}, {"split", "train"}}).Set(progress.accuracy());
  }
  if (progress.has_learning_rate()) learning_rate_.With(id).Set(progress.learning_rate());
  if (!job.history().epochs().empty()) {
    const common::v1::EpochRecord& last = job.history().epochs().rbegin()->second;
    if (last.has_validation_loss()) {
      loss_.With({{"job_id", job.id()}, {"split", "validation"}}).Set(last.validation_loss());
    }
    if (last.has_validation_accuracy()) {
      accuracy_.With({{"job_id", job.id()}, {"split", "validation"}})
          .Set(last.validation_accuracy());
    }
  }
  if (job.has_view()) {
    lineage_.With(id).Set(static_cast<double>(job.view().lineage()));
    generation_.With(id).Set(static_cast<double>(job.view().generation()));
    prometheus::Counter& takeovers = takeovers_.With(id);
    if (series.generation > 0 && job.view().lineage() == series.lineage) {
      takeovers.Increment(static_cast<double>(job.view().generation() - series.generation));
    }
    series.generation = job.view().generation();
    series.lineage = job.view().lineage();
  }
  samples_.With(id).Increment(
      static_cast<double>(std::max<int64_t>(0, job.history().samples_used() - series.samples)));
  series.samples = job.history().samples_used();
  const auto grow = [&](const services::CounterFamily& family, int64_t& before, int64_t now) {
    family.With(id).Increment(static_cast<double>(std::max<int64_t>(0, now - before)));
    before = now;
  };
  grow(nonfinite_, series.nonfinite, job.lead().skipped_steps());
  grow(lost_lines_, series.lost_lines, job.logs().dropped() + job.logs().lost());
  if (ended) {
    series.started = false;
    registry_.RetireSeries("job_id", job.id());
  }
}

void CoordinatorMetrics::SetPendingSlots(JobSeries& series, int64_t slots) {
  pending_slots_.With({{"queue", kQueue}})
      .Increment(static_cast<double>(slots - series.pending_slots));
  series.pending_slots = slots;
}

// Counts only once the job continues: a shard that is back with its memory before caused no
// restart.
void CoordinatorMetrics::OnRestarts(const core::Job& job, JobSeries& series) {
  if (job.restarts().count() > series.restarts && job.view().lineage() <= series.lineage &&
      job.state() != common::v1::JOB_STATE_RUNNING) {
    return;
  }
  if (job.restarts().count() > series.restarts) {
    restarts_.With({{"queue", kQueue}, {"reason", job.restarts().reason()}})
        .Increment(static_cast<double>(job.restarts().count() - series.restarts));
  }
  series.restarts = job.restarts().count();
}

void CoordinatorMetrics::NoteTimes(const job::v1::Event& event, JobSeries& series) {
  if (std::find(std::begin(kBegins), std::end(kBegins), event.type()) != std::end(kBegins)) {
    series.begun_at = TimeOf(event.time());
  } else if (event.type() == "CheckpointSaved") {
    series.saved_at = TimeOf(event.time());
  }
}

void CoordinatorMetrics::OnEvents(const core::Job& job, JobSeries& series) {
  for (auto it = job.events().After(series.event); it != job.events().end(); ++it) {
    events_.With({{"event", it->event.type()}}).Increment();
    NoteTimes(it->event, series);
  }
  series.event = job.events().last_number();
}

void CoordinatorMetrics::OnNodes(const core::NodeTable& nodes) {
  int64_t slots = 0;  // parameter stores have none
  int64_t allocated = 0;
  struct Kind {
    common::v1::Role role;
    const char* label;
    const services::GaugeFamily& count;
    const services::GaugeFamily& heartbeat;
  };
  for (const Kind& kind :
       {Kind{common::v1::ROLE_WORKER, "worker", workers_, heartbeat_},
        Kind{common::v1::ROLE_PARAM_STORE, "param_store", stores_, store_heartbeat_}}) {
    int lost = 0;
    int left = 0;
    NodeNames names;
    NodeNames& before = nodes_[kind.role];
    for (const auto& entry : nodes.all()) {
      const core::Node& node = entry.second;
      if (node.reg().role() != kind.role) continue;
      for (const std::string& job : node.slots()) allocated += job.empty() || node.lost() ? 0 : 1;
      if (node.left()) {
        ++left;
        continue;
      }
      names.series.insert(node.name());
      kind.heartbeat.With({{kind.label, node.name()}}).Set(UnixSeconds(node.last_heard_wall()));
      if (node.lost()) {
        ++lost;
        if (before.ready.count(node.name()) != 0) {
          leases_lost_.With({{"role", kind.label}}).Increment();
        }
        continue;
      }
      names.ready.insert(node.name());
      for (int i = 0; i < static_cast<int>(node.slots().size()); ++i) {
        slots += core::IsSpare(node, i) ? 0 : 1;
      }
    }
    kind.count.With({{"state", "ready"}}).Set(static_cast<double>(names.ready.size()));
    kind.count.With({{"state", "lost"}}).Set(lost);
    kind.count.With({{"state", "left"}}).Set(left);
    for (const std::string& name : before.series) {
      // At once, because two scrapes later the last heartbeat would be old enough for an alert.
      if (names.series.count(name) == 0) kind.heartbeat.Drop({{kind.label, name}});
    }
    before = std::move(names);
  }
  quota_slots_.With({{"queue", kQueue}}).Set(static_cast<double>(slots));
  allocated_slots_.With({{"queue", kQueue}}).Set(static_cast<double>(allocated));
}

}  // namespace capstan::coordinator
