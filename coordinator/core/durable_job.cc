#include "coordinator/core/durable_job.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/timestamp/timestamp.h"

namespace capstan::coordinator::core {

constexpr int32_t kMostTasks = 1 << 20;  // between two that are remembered

v1::DurableJob FactsOf(const Job& job) {
  v1::DurableJob out;
  out.set_job_id(job.id());
  out.set_sequence(job.sequence());
  out.set_request_id(job.request_id());
  out.set_owner(job.owner());
  out.set_spec(job.spec_bytes());
  SetTime(job.standing().submitted_at(), out.mutable_submitted_at());
  if (job.standing().started_at() != absl::InfinitePast())
    SetTime(job.standing().started_at(), out.mutable_started_at());
  if (job.standing().finished_at() != absl::InfinitePast())
    SetTime(job.standing().finished_at(), out.mutable_finished_at());
  out.set_state(job.state());
  out.set_reason(job.standing().reason());
  out.set_cancel_asked(job.cancel_asked());
  out.set_resolved_spec(job.resolution().bytes());
  out.set_spec_digest(job.resolution().digest());
  if (job.has_view()) *out.mutable_view() = job.view();
  for (const Task& task : job.tasks()) {
    if (task.forgotten) continue;
    v1::DurableRank* to = out.add_ranks();
    to->set_index(task.index);
    to->set_node(task.node);
    to->set_host(task.host);
    to->set_incarnation(task.incarnation);
    for (const int device : task.devices) to->add_devices(device);
    to->set_lost(task.lost);
    to->set_why(task.why);
  }
  for (const Shard& shard : job.shards()) {
    v1::DurableShard* to = out.add_shards();
    to->set_index(shard.index);
    to->set_node(shard.node);
    to->set_host(shard.host);
    to->set_incarnation(shard.incarnation);
    to->set_address(shard.address);
    to->set_lost(shard.lost);
    to->set_why(shard.why);
  }
  out.set_probe_id(job.members().probe_id());
  out.set_weights_sha256(job.written().weights_sha256());
  out.set_checkpoint_uri(job.checkpoints().uri());
  out.set_wound_down(job.wound_down());
  out.set_probing(job.members().probing());
  for (const SavedManifest& manifest : job.checkpoints().all()) {
    v1::DurableManifest* to = out.add_manifests();
    *to->mutable_saved() = manifest.saved;
    for (const int64_t id : manifest.orders) to->add_orders(id);
    to->set_refused(manifest.refused);
  }
  out.set_base(job.lineages().base());
  out.set_recover(job.recovery().wanted());
  out.set_restarts(job.restarts().count());
  if (job.restarts().limit_set().has_value()) out.set_max_restarts(*job.restarts().limit_set());
  for (const JobChange& change : job.changes()) {
    v1::DurableOrder* to = out.add_orders();
    *to->mutable_order() = change.order;
    to->set_lineage(change.lineage);
    to->set_hand_over(change.hand_over);
    if (change.move.has_value()) *to->mutable_move() = *change.move;
  }
  out.set_on_gpus(job.members().on_gpus());
  if (job.spec_changed()) out.set_changed_spec(job.spec().SerializeAsString());
  out.set_settled_step(job.written().settled_step());
  for (const std::string& condition : job.standing().conditions()) out.add_conditions(condition);
  out.set_restart_step(job.restarts().step());
  for (const std::string& id : job.checkpoints().deleted()) out.add_deleted(id);
  // People were told of each of these.
  if (const int64_t skipped = job.history().progress().skipped_steps(); skipped > 0) {
    out.mutable_progress()->mutable_progress()->set_skipped_steps(skipped);
  }
  return out;
}

v1::DurableJob ToDurable(const Job& job, absl::Duration now) {
  v1::DurableJob out = FactsOf(job);
  v1::DurableProgress* progress = out.mutable_progress();
  progress->set_message(job.standing().message());
  *progress->mutable_progress() = job.history().progress();
  for (const auto& entry : job.history().epochs()) *progress->add_epochs() = entry.second;
  progress->set_samples_used(job.history().samples_used());
  progress->set_active_seconds(absl::ToDoubleSeconds(job.clock().Ran(now)));
  // A monotonic time means nothing to another process: what is left of it does.
  const absl::Duration due =
      job.recovery().wanted() ? job.recovery().at() : job.recovery().retry_at();
  if (due > now && due < absl::InfiniteDuration()) {
    progress->set_backoff_seconds(absl::ToDoubleSeconds(due - now));
  }
  return out;
}

std::string FactsOf(const v1::DurableJob& durable) {
  v1::DurableJob facts = durable;
  const int64_t skipped = durable.progress().progress().skipped_steps();
  facts.clear_progress();
  if (skipped > 0) facts.mutable_progress()->mutable_progress()->set_skipped_steps(skipped);
  return facts.SerializeAsString();
}

namespace {

// What the journal has of a gang.
absl::Status LoadGang(const v1::DurableJob& durable, absl::Duration now, Job& job) {
  std::vector<Task>& tasks = job.tasks();
  for (const v1::DurableRank& from : durable.ranks()) {
    const auto next = static_cast<int32_t>(tasks.size());
    if (from.index() < next || from.index() > next + kMostTasks) {
      return absl::DataLossError("ranks are mixed up");
    }
    // Before it were some that are forgotten.
    while (static_cast<int32_t>(tasks.size()) < from.index()) {
      Task place;
      place.index = static_cast<int32_t>(tasks.size());
      place.lost = place.gone = place.forgotten = true;
      tasks.push_back(std::move(place));
    }
    Task task;
    task.index = from.index();
    task.node = from.node();
    task.host = from.host();
    task.incarnation = from.incarnation();
    task.devices.assign(from.devices().begin(), from.devices().end());
    task.lost = from.lost();
    task.why = from.why();
    // It may have been told to start; its next heartbeat says whether it was.
    task.start_sent = now;
    tasks.push_back(std::move(task));
  }
  for (const v1::DurableShard& from : durable.shards()) {
    Shard shard;
    shard.index = from.index();
    shard.node = from.node();
    shard.host = from.host();
    shard.incarnation = from.incarnation();
    shard.address = from.address();
    shard.lost = from.lost();
    shard.why = from.why();
    shard.lineage_sent = now;
    job.shards().push_back(std::move(shard));
  }
  job.members().Load(durable.probe_id(), durable.probing(), durable.on_gpus());
  return absl::OkStatus();
}

void LoadCheckpoints(const v1::DurableJob& durable, Job& job) {
  std::vector<SavedManifest> manifests;
  for (const v1::DurableManifest& from : durable.manifests()) {
    manifests.push_back(
        {from.saved(), {from.orders().begin(), from.orders().end()}, from.refused()});
  }
  job.checkpoints().Load(std::move(manifests), durable.checkpoint_uri(),
                         {durable.deleted().begin(), durable.deleted().end()});
  const SavedManifest* const base = job.checkpoints().Find(durable.base());
  const int64_t base_step = base == nullptr ? 0 : base->saved.step();
  job.lineages().Load(durable.view(), durable.base(), base_step);
  int64_t settled_step = base_step;
  if (const SavedManifest* last = job.checkpoints().Last();
      last != nullptr && last->saved.lineage() == job.view().lineage()) {
    settled_step = last->saved.step();
  }
  // Versions that were given up count, too: their writers let go of them when they were told.
  job.written().Load(std::max(settled_step, durable.settled_step()));
  job.written().SetWeightsSha256(durable.weights_sha256());
}

// Which tasks the view has, and which of them have lanes.
void PlaceTasks(absl::Duration now, Job& job) {
  std::vector<Task>& tasks = job.tasks();
  for (const common::v1::WorkerRef& worker : job.view().workers()) {
    if (worker.rank() >= 0 && worker.rank() < static_cast<int32_t>(tasks.size())) {
      tasks[static_cast<size_t>(worker.rank())].probed = job.in_history();
    }
  }
  for (Task& task : tasks) {
    const auto& owners = job.view().lane_owners();
    task.dealt = std::find(owners.begin(), owners.end(), task.index) != owners.end();
    task.deal_at = now;
  }
}

void LoadProgress(const v1::DurableProgress& progress, bool recovers, absl::Duration now,
                  absl::Time wall, Job& job) {
  Standing& standing = job.standing();
  standing.Set(standing.state(), standing.reason(), progress.message());
  job.history().Load(progress.progress(), {progress.epochs().begin(), progress.epochs().end()},
                     progress.samples_used());
  job.clock().Set(absl::Seconds(std::max(0.0, progress.active_seconds())));
  if (!job.resting()) job.clock().Run(now);
  const absl::Duration backoff = absl::Seconds(std::max(0.0, progress.backoff_seconds()));
  if (recovers) {
    job.recovery().Want(Recovery::Cause::kOther, now + backoff);
  } else if (backoff > absl::ZeroDuration() && job.state() == common::v1::JOB_STATE_PENDING) {
    job.recovery().RetryAfter(backoff, now, wall);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Job>> FromDurable(const v1::DurableJob& durable,
                                                 const std::map<int64_t, job::v1::Event>& events,
                                                 const CoreOptions& options, absl::Duration now,
                                                 absl::Time wall) {
  const auto broken = [&durable](absl::string_view what) {
    return absl::DataLossError(absl::StrCat("job ", durable.job_id(), ": its ", what));
  };
  Submission what;
  what.id = durable.job_id();
  what.sequence = durable.sequence();
  what.request_id = durable.request_id();
  what.owner = durable.owner();
  what.spec_bytes = durable.spec();
  what.spec_changed = !durable.changed_spec().empty();
  if (!what.spec.ParseFromString(what.spec_changed ? durable.changed_spec() : durable.spec())) {
    return broken("spec is none");
  }
  auto out = std::make_unique<Job>(std::move(what), options);
  Job& job = *out;
  Standing::Times times;
  times.submitted_at = TimeOf(durable.submitted_at());
  if (durable.has_started_at()) times.started_at = TimeOf(durable.started_at());
  if (durable.has_finished_at()) times.finished_at = TimeOf(durable.finished_at());
  job.standing().Load(durable.state(), durable.reason(), durable.cancel_asked(), times, now);
  for (const std::string& condition : durable.conditions()) job.standing().AddCondition(condition);
  if (!job.resolution().Load(durable.resolved_spec(), durable.spec_digest())) {
    return broken("resolved spec is none");
  }
  if (durable.view().lineage() > 0 && !job.resolved().has_value()) {
    return broken("view has no resolved spec");
  }
  if (absl::Status status = LoadGang(durable, now, job); !status.ok()) {
    return broken(status.message());
  }
  LoadCheckpoints(durable, job);
  PlaceTasks(now, job);
  std::optional<int32_t> max_restarts;
  if (durable.has_max_restarts()) max_restarts = durable.max_restarts();
  job.restarts().Load(durable.restarts(), durable.restart_step(), max_restarts);
  for (const v1::DurableOrder& from : durable.orders()) {
    JobChange change{from.order(), from.lineage(), from.hand_over()};
    if (from.has_move()) change.move = from.move();
    job.changes().Load(change);
  }
  job.set_wound_down(durable.wound_down());
  LoadProgress(durable.progress(), durable.recover(), now, wall, job);
  job.waiting().Excuse(now);
  for (const auto& entry : events) job.events().Load(entry.first, entry.second);
  return out;
}

}  // namespace capstan::coordinator::core
