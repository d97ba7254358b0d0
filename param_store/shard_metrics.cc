#include "param_store/shard_metrics.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace capstan::param_store {

ShardMetrics::ShardMetrics(services::MetricsRegistry& registry)
    : registry_(registry),
      request_duration_(registry.Histogram("capstan_ps_request_duration_seconds",
                                           "Handling time of push or pull in the parameter store.",
                                           services::LatencyBuckets(), {"job_id", "op"})),
      apply_duration_(registry.Histogram("capstan_ps_apply_duration_seconds",
                                         "Optimizer update of all chunks of the shard.",
                                         services::LatencyBuckets(), {"job_id"})),
      dropped_(registry.Counter("capstan_ps_gradients_dropped_total", "Gradients not applied.",
                                {"job_id", "reason"})),
      inflight_(registry.Gauge("capstan_ps_inflight_requests", "Requests being handled.", {"op"})),
      pushes_under_way_(&inflight_.With({{"op", "push"}})),
      pulls_under_way_(&inflight_.With({{"op", "pull"}})),
      model_version_(
          registry.Gauge("capstan_ps_model_version", "Version of the shard.", {"job_id", "shard"})),
      waiting_workers_(registry.Gauge("capstan_ps_waiting_workers",
                                      "Workers blocked in the current synchronous round.",
                                      {"job_id"})),
      slow_readers_(registry.Gauge("capstan_ps_slow_readers",
                                   "Workers that need longer than a step to take a version.",
                                   {"job_id"})),
      missed_versions_(registry.Counter("capstan_ps_versions_missed_total",
                                        "Versions that slow workers were not sent.", {"job_id"})),
      staleness_(registry.Histogram(
          "capstan_ps_gradient_staleness_steps",
          "Steps of the slowest lane that the weights of a gradient lacked (asynchronous jobs).",
          services::StepBuckets(), {"job_id"})),
      max_staleness_(registry.Gauge("capstan_ps_max_staleness_steps",
                                    "Bound of the staleness (asynchronous jobs); -1: none.",
                                    {"job_id"})),
      resident_bytes_(registry.Gauge(
          "capstan_ps_resident_bytes",
          "Memory held by weights, optimizer state and pending gradients.", {"job_id", "kind"})),
      checkpoint_duration_(registry.Histogram("capstan_checkpoint_duration_seconds",
                                              "Time to save or restore a checkpoint.",
                                              services::LongBuckets(), {"job_id", "op"})),
      checkpoint_size_(registry.Gauge("capstan_checkpoint_size_bytes",
                                      "Size of the last checkpoint of this shard.", {"job_id"})),
      checkpoint_success_(registry.Gauge("capstan_checkpoint_last_success_timestamp_seconds",
                                         "Unix time of the last complete checkpoint.", {"job_id"})),
      checkpoint_failures_(registry.Counter("capstan_checkpoint_failures_total",
                                            "Failed checkpoint operations.", {"job_id", "op"})) {}

JobMetrics::JobMetrics(ShardMetrics* metrics, const exchange::shard::ShardPlan& plan)
    : metrics_(metrics), on_(metrics != nullptr) {
  if (!on_) return;
  ShardMetrics& m = *metrics;
  const std::string& job_id = plan.job_id;
  const auto dropped = [&](const char* reason) {
    return &m.dropped_.With({{"job_id", job_id}, {"reason", reason}});
  };
  const auto resident = [&](const char* kind) {
    return &m.resident_bytes_.With({{"job_id", job_id}, {"kind", kind}});
  };
  series_ = {
      .push = &m.request_duration_.With({{"job_id", job_id}, {"op", "push"}}),
      .pull = &m.request_duration_.With({{"job_id", job_id}, {"op", "pull"}}),
      .apply = &m.apply_duration_.With({{"job_id", job_id}}),
      .save = &m.checkpoint_duration_.With({{"job_id", job_id}, {"op", "save"}}),
      .restore = &m.checkpoint_duration_.With({{"job_id", job_id}, {"op", "restore"}}),
      .version = &m.model_version_.With({{"job_id", job_id}, {"shard", absl::StrCat(plan.shard)}}),
      .waiting = &m.waiting_workers_.With({{"job_id", job_id}}),
      .slow_readers = &m.slow_readers_.With({{"job_id", job_id}}),
      .missed_versions = &m.missed_versions_.With({{"job_id", job_id}}),
      .staleness =
          plan.asynchronous && plan.shard == 0 ? &m.staleness_.With({{"job_id", job_id}}) : nullptr,
      .max_staleness = plan.asynchronous && plan.shard == 0
                           ? &m.max_staleness_.With({{"job_id", job_id}})
                           : nullptr,
      .weights = resident("weights"),
      .optimizer = resident("optimizer_state"),
      .pending = resident("pending"),
      .checkpoint_size = &m.checkpoint_size_.With({{"job_id", job_id}}),
      .checkpoint_success = &m.checkpoint_success_.With({{"job_id", job_id}}),
      .save_failures = &m.checkpoint_failures_.With({{"job_id", job_id}, {"op", "save"}}),
      .restore_failures = &m.checkpoint_failures_.With({{"job_id", job_id}, {"op", "restore"}}),
      .stale = dropped("stale"),
      .duplicate = dropped("duplicate"),
      .corrupt = dropped("corrupt"),
      .ahead = dropped("ahead"),
      .wrong_shard = dropped("wrong_shard"),
      .invalid = dropped("invalid"),
      .fenced = dropped("fenced"),
  };
}

JobMetrics::~JobMetrics() {
  if (!on_) return;
  // What came after the end of the strand.
  metrics_->pushes_under_way_->Decrement(messages_);
  SetPulls(0);
}

void JobMetrics::MessageCame() {
  if (!on_) return;
  ++messages_;
  metrics_->pushes_under_way_->Increment();
}

void JobMetrics::MessageHandled() {
  if (!on_) return;
  --messages_;
  metrics_->pushes_under_way_->Decrement();
}

void JobMetrics::SetPulls(int pulls) {
  metrics_->pulls_under_way_->Increment(pulls - pulls_);
  pulls_ = pulls;
}

void JobMetrics::Pushed(absl::Duration took) {
  if (on_) series_.push->Observe(absl::ToDoubleSeconds(took));
}

void JobMetrics::Pulled(absl::Duration took) {
  if (on_) series_.pull->Observe(absl::ToDoubleSeconds(took));
}

void JobMetrics::Applied(absl::Duration took) {
  if (on_) series_.apply->Observe(absl::ToDoubleSeconds(took));
}

void JobMetrics::Saved(absl::Duration took, int64_t size_bytes) {
  if (!on_) return;
  series_.save->Observe(absl::ToDoubleSeconds(took));
  series_.checkpoint_size->Set(static_cast<double>(size_bytes));
  series_.checkpoint_success->Set(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
}

void JobMetrics::SaveFailed() {
  if (on_) series_.save_failures->Increment();
}

void JobMetrics::Restored(absl::Duration took) {
  if (on_) series_.restore->Observe(absl::ToDoubleSeconds(took));
}

void JobMetrics::RestoreFailed() {
  if (on_) series_.restore_failures->Increment();
}

void JobMetrics::Update(const exchange::shard::ShardCore& core, const ShardStorage::Bytes& bytes,
                        int pulls) {
  if (!on_) return;
  SetPulls(pulls);
  const exchange::shard::DropCounts& now = core.drops();
  const auto grow = [](prometheus::Counter* counter, int64_t now, int64_t before) {
    if (now > before) counter->Increment(static_cast<double>(now - before));
  };
  grow(series_.stale, now.past, counted_.past);
  grow(series_.duplicate, now.covered, counted_.covered);
  grow(series_.corrupt, now.corrupt, counted_.corrupt);
  grow(series_.ahead, now.ahead, counted_.ahead);
  grow(series_.wrong_shard, now.wrong_shard, counted_.wrong_shard);
  grow(series_.invalid, now.invalid, counted_.invalid);
  grow(series_.fenced, now.lineage, counted_.lineage);
  counted_ = now;
  grow(series_.missed_versions, core.missed_versions(), counted_missed_);
  counted_missed_ = core.missed_versions();
  if (series_.max_staleness != nullptr) {
    series_.max_staleness->Set(static_cast<double>(core.max_staleness()));
  }
  const std::vector<int64_t>& staleness = core.staleness();
  counted_staleness_.resize(staleness.size());
  for (size_t steps = 0; series_.staleness != nullptr && steps < staleness.size(); ++steps) {
    // The last count has all that are above the buckets, too.
    const double value = static_cast<double>(steps) + (steps + 1 == staleness.size() ? 1 : 0);
    for (; counted_staleness_[steps] < staleness[steps]; ++counted_staleness_[steps]) {
      series_.staleness->Observe(value);
    }
  }
  if (core.lead() != nullptr) {
    series_.slow_readers->Set(static_cast<double>(core.slow_readers()));
  }
  series_.version->Set(static_cast<double>(core.version()));
  series_.waiting->Set(core.waiting_workers());
  series_.weights->Set(static_cast<double>(bytes.weights));
  series_.optimizer->Set(static_cast<double>(bytes.optimizer));
  series_.pending->Set(static_cast<double>(bytes.pending));
}

}  // namespace capstan::param_store
