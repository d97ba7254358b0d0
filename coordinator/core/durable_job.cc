#include "coordinator/core/durable_job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/timestamp/timestamp.h"

namespace capstan::coordinator::core {

constexpr int32_t kMostRanks = 1 << 20;  // between two that are remembered

v1::DurableJob ToDurable(const JobRecord& job, absl::Duration now) {
  v1::DurableJob out;
  out.set_job_id(job.id);
  out.set_sequence(job.sequence);
  out.set_request_id(job.request_id);
  out.set_owner(job.owner);
  out.set_spec(job.spec_bytes);
  SetTime(job.submitted_at, out.mutable_submitted_at());
  if (job.started_at != absl::InfinitePast()) SetTime(job.started_at, out.mutable_started_at());
  if (job.finished_at != absl::InfinitePast()) SetTime(job.finished_at, out.mutable_finished_at());
  out.set_state(job.state);
  out.set_reason(job.reason);
  out.set_cancel_asked(job.cancel_asked);
  out.set_resolved_spec(job.resolved_bytes);
  out.set_spec_digest(job.digest);
  if (job.has_view()) *out.mutable_view() = job.view;
  for (const Rank& rank : job.ranks) {
    if (rank.forgotten) continue;
    v1::DurableRank* to = out.add_ranks();
    to->set_index(rank.index);
    to->set_node(rank.node);
    to->set_host(rank.host);
    to->set_incarnation(rank.incarnation);
    for (const int device : rank.devices) to->add_devices(device);
    to->set_lost(rank.lost);
    to->set_why(rank.why);
  }
  for (const Shard& shard : job.shards) {
    v1::DurableShard* to = out.add_shards();
    to->set_index(shard.index);
    to->set_node(shard.node);
    to->set_host(shard.host);
    to->set_incarnation(shard.incarnation);
    to->set_address(shard.address);
    to->set_lost(shard.lost);
    to->set_why(shard.why);
  }
  out.set_probe_id(job.probe_id);
  out.set_weights_sha256(job.weights_sha256);
  out.set_checkpoint_uri(job.checkpoint_uri);
  out.set_wound_down(job.wound_down);
  out.set_probing(job.probing);
  for (const SavedManifest& manifest : job.manifests) {
    v1::DurableManifest* to = out.add_manifests();
    *to->mutable_saved() = manifest.saved;
    for (const int64_t id : manifest.orders) to->add_orders(id);
    to->set_refused(manifest.refused);
  }
  out.set_base(job.base);
  out.set_recover(job.recover);
  out.set_restarts(job.restarts);
  if (job.max_restarts.has_value()) out.set_max_restarts(*job.max_restarts);
  for (const JobOrder& order : job.orders) {
    v1::DurableOrder* to = out.add_orders();
    *to->mutable_order() = order.order;
    to->set_lineage(order.lineage);
    to->set_hand_over(order.hand_over);
  }
  out.set_on_gpus(job.on_gpus);
  if (job.spec_changed) out.set_changed_spec(job.spec.SerializeAsString());
  out.set_settled_step(job.settled_step);
  for (const std::string& condition : job.conditions) out.add_conditions(condition);
  out.set_restart_step(job.restart_step);
  for (const std::string& id : job.deleted) out.add_deleted(id);

  v1::DurableProgress* progress = out.mutable_progress();
  progress->set_message(job.message);
  *progress->mutable_progress() = job.progress;
  for (const auto& entry : job.epochs) *progress->add_epochs() = entry.second;
  progress->set_samples_used(job.samples_used);
  progress->set_active_seconds(absl::ToDoubleSeconds(job.Ran(now)));
  // A monotonic time means nothing to another process: what is left of it does.
  const absl::Duration due = job.recover ? job.recover_at : job.retry_at;
  if (due > now && due < absl::InfiniteDuration()) {
    progress->set_backoff_seconds(absl::ToDoubleSeconds(due - now));
  }
  return out;
}

std::string FactsOf(const v1::DurableJob& durable) {
  v1::DurableJob facts = durable;
  facts.clear_progress();
  // People were told of each of these.
  if (const int64_t skipped = durable.progress().progress().skipped_steps(); skipped > 0) {
    facts.mutable_progress()->mutable_progress()->set_skipped_steps(skipped);
  }
  return facts.SerializeAsString();
}

absl::StatusOr<std::unique_ptr<JobRecord>> FromDurable(
    const v1::DurableJob& durable, const std::map<int64_t, job::v1::Event>& events,
    const CoreOptions& options, absl::Duration now, absl::Time wall) {
  auto out = std::make_unique<JobRecord>(options);
  JobRecord& job = *out;
  const auto broken = [&durable](const char* what) {
    return absl::DataLossError(absl::StrCat("job ", durable.job_id(), ": its ", what));
  };
  job.id = durable.job_id();
  job.sequence = durable.sequence();
  job.request_id = durable.request_id();
  job.owner = durable.owner();
  job.spec_bytes = durable.spec();
  job.spec_changed = !durable.changed_spec().empty();
  if (!job.spec.ParseFromString(job.spec_changed ? durable.changed_spec() : durable.spec())) {
    return broken("spec is none");
  }
  job.submitted_at = TimeOf(durable.submitted_at());
  if (durable.has_started_at()) job.started_at = TimeOf(durable.started_at());
  if (durable.has_finished_at()) job.finished_at = TimeOf(durable.finished_at());
  job.state = durable.state();
  job.reason = durable.reason();
  job.cancel_asked = durable.cancel_asked();
  job.cancel_since = now;
  job.resolved_bytes = durable.resolved_spec();
  job.digest = durable.spec_digest();
  if (!durable.resolved_spec().empty() &&
      !job.resolved.emplace().ParseFromString(durable.resolved_spec())) {
    return broken("resolved spec is none");
  }
  job.view = durable.view();
  if (job.has_view() && !job.resolved.has_value()) return broken("view has no resolved spec");
  for (const v1::DurableRank& from : durable.ranks()) {
    const auto next = static_cast<int32_t>(job.ranks.size());
    if (from.index() < next || from.index() > next + kMostRanks)
      return broken("ranks are mixed up");
    // Before it were some that are forgotten.
    while (static_cast<int32_t>(job.ranks.size()) < from.index()) {
      Rank place;
      place.index = static_cast<int32_t>(job.ranks.size());
      place.lost = place.gone = place.forgotten = true;
      job.ranks.push_back(std::move(place));
    }
    Rank rank;
    rank.index = from.index();
    rank.node = from.node();
    rank.host = from.host();
    rank.incarnation = from.incarnation();
    rank.devices.assign(from.devices().begin(), from.devices().end());
    rank.lost = from.lost();
    rank.why = from.why();
    // It may have been told; its next heartbeat says whether it was.
    rank.start_sent = now;
    job.ranks.push_back(std::move(rank));
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
    job.shards.push_back(std::move(shard));
  }
  job.probe_id = durable.probe_id();
  job.weights_sha256 = durable.weights_sha256();
  job.checkpoint_uri = durable.checkpoint_uri();
  job.wound_down = durable.wound_down();
  job.probing = durable.probing();
  for (const v1::DurableManifest& from : durable.manifests()) {
    job.manifests.push_back(
        {from.saved(), {from.orders().begin(), from.orders().end()}, from.refused()});
  }
  job.base = durable.base();
  if (const SavedManifest* base = job.FindManifest(job.base); base != nullptr) {
    job.base_step = base->saved.step();
  }
  job.settled_step = job.base_step;
  if (const SavedManifest* last = job.LastManifest();
      last != nullptr && last->saved.lineage() == job.view.lineage()) {
    job.settled_step = last->saved.step();
  }
  // Those that were given up, too: their writers let go of them when they were told.
  job.settled_step = std::max(job.settled_step, durable.settled_step());
  job.recover = durable.recover();
  job.restarts = durable.restarts();
  job.restart_step = durable.restart_step();
  job.deleted.insert(durable.deleted().begin(), durable.deleted().end());
  job.conditions.insert(durable.conditions().begin(), durable.conditions().end());
  if (durable.has_max_restarts()) job.max_restarts = durable.max_restarts();
  for (const v1::DurableOrder& from : durable.orders()) {
    job.orders.push_back({from.order(), from.lineage(), from.hand_over()});
  }
  job.on_gpus = durable.on_gpus();
  for (const common::v1::WorkerRef& worker : job.view.workers()) {
    if (worker.rank() >= 0 && worker.rank() < static_cast<int32_t>(job.ranks.size())) {
      job.ranks[static_cast<size_t>(worker.rank())].probed = job.in_history();
    }
  }
  for (Rank& rank : job.ranks) {
    const auto& owners = job.view.lane_owners();
    rank.dealt = std::find(owners.begin(), owners.end(), rank.index) != owners.end();
    rank.deal_at = now;
  }

  const v1::DurableProgress& progress = durable.progress();
  job.message = progress.message();
  job.progress = progress.progress();
  for (const common::v1::EpochRecord& epoch : progress.epochs()) job.epochs[epoch.epoch()] = epoch;
  job.samples_used = progress.samples_used();
  job.ran = absl::Seconds(std::max(0.0, progress.active_seconds()));
  if (!job.resting()) job.RunClock(now);
  const absl::Duration backoff = absl::Seconds(std::max(0.0, progress.backoff_seconds()));
  if (job.recover) {
    job.recover_at = now + backoff;
  } else if (backoff > absl::ZeroDuration() && job.state == common::v1::JOB_STATE_PENDING) {
    job.retry_at = now + backoff;
    job.retry_wall = wall + backoff;
  }
  job.progress_at = now;

  for (const auto& entry : events) {
    job.events.push_back(entry.second);
    job.event_numbers.push_back(entry.first);
    job.last_event = entry.first;
  }
  job.saved_event = job.last_event;
  return out;
}

}  // namespace capstan::coordinator::core
