#include "training/spec/validate.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "training/codec/local_uri.h"
#include "training/graph/models.h"
#include "training/lanes/sample_plan.h"
#include "training/ops/limits.h"
#include "training/spec/graph_message.h"
#include "training/spec/rules.h"

namespace capstan::training::spec {
namespace {

using job::v1::JobSpec;

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr double kMaxSeconds = 3.2e7;  // a year
constexpr double kBackoffInitialSeconds = 1;
constexpr double kBackoffMaxSeconds = 300;
constexpr double kCheckpointEverySeconds = 30;

bool IsName(absl::string_view name) {
  if (name.empty() || name.size() > 63 || name[0] == '-') return false;
  for (const char c : name) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '-') return false;
  }
  return true;
}

// 'a\nb', or only the beginning of a long text.
std::string Shown(const std::string& text) {
  if (text.size() <= 100) return absl::StrCat("'", absl::Utf8SafeCEscape(text), "'");
  return absl::StrCat(text.size(), " bytes that begin with '",
                      absl::Utf8SafeCEscape(text.substr(0, 40)), "'");
}

void CheckLabels(const JobSpec& spec, Rules& rules) {
  if (spec.labels_size() > 32)
    rules.Wrong("labels", absl::StrCat("has ", spec.labels_size(), " entries, 32 is the limit"));
  for (const auto& [key, value] : spec.labels()) {
    if (key.empty() || key.size() > 63 || value.size() > 63 || HasControl(key) ||
        HasControl(value)) {
      rules.Wrong("labels", "takes keys of 1 to 63 and values of at most 63 printable characters");
      return;
    }
  }
}

void CheckResources(const JobSpec& spec, Rules& rules) {
  const auto& r = spec.resources();
  if (r.has_num_workers()) rules.Range<int64_t>("resources.num_workers", r.num_workers(), 1, 1024);
  if (r.has_gpus_per_worker())
    rules.Range<int64_t>("resources.gpus_per_worker", r.gpus_per_worker(), 1, 64);
  if (r.has_lanes()) rules.Range<int64_t>("resources.lanes", r.lanes(), 1, kMaxStepLanes);
  if (r.has_num_shards()) rules.Range<int64_t>("resources.num_shards", r.num_shards(), 1, 256);
  if (r.has_min_workers()) {
    const int64_t workers = r.has_num_workers() ? r.num_workers() : 1;
    rules.Range<int64_t>("resources.min_workers", r.min_workers(), 1, 1024);
    // Otherwise a range error of one of the two was reported above.
    if (workers >= 1 && r.min_workers() <= 1024 && r.min_workers() > workers) {
      rules.Fail("resources.min_workers", absl::StrCat("must be at most num_workers (", workers,
                                                       "), found ", r.min_workers()));
    }
  }
  if (r.has_device()) rules.OneOf("resources.device", r.device(), {"auto", "cpu", "gpu"});
  for (const double weight : r.lane_weights()) {
    if (!std::isfinite(weight) || weight <= 0 || weight > 1e6) {
      rules.Wrong("resources.lane_weights",
                  absl::StrCat("takes numbers above 0 up to 1000000, found ", weight));
      break;
    }
  }
  const int64_t lanes = r.has_lanes() ? r.lanes() : DeviceCount(spec);
  if (r.lane_weights_size() > 0 && r.lane_weights_size() != lanes) {
    rules.Fail("resources.lane_weights",
               absl::StrCat("has ", r.lane_weights_size(), " entries, want one for each of the ",
                            lanes, " lanes"));
  }
  const bool counts_fit =
      r.num_workers() <= 1024 && r.gpus_per_worker() <= 64;  // else reported already
  if (!r.has_lanes() && counts_fit && lanes > kMaxStepLanes) {
    rules.Fail("resources.lanes", absl::StrCat("comes to ", lanes, " (workers x devices), ",
                                               kMaxStepLanes, " is the limit"));
  }
  if (r.devices_size() > 0) {
    if (r.devices_size() != (r.has_gpus_per_worker() ? r.gpus_per_worker() : r.devices_size())) {
      rules.Fail("resources.devices",
                 absl::StrCat("lists ", r.devices_size(), " devices, gpus_per_worker is ",
                              r.gpus_per_worker()));
    }
    std::set<int32_t> listed;
    for (const int32_t index : r.devices()) {
      if (index < 0 || index > 63) {
        rules.Wrong("resources.devices",
                    absl::StrCat("takes indices between 0 and 63, found ", index));
      } else if (!listed.insert(index).second) {
        rules.Wrong("resources.devices", absl::StrCat("lists device ", index, " twice"));
      }
    }
  }
}

void CheckKvStore(const JobSpec& spec, Rules& rules) {
  const auto& r = spec.resources();
  if (!spec.kvstore().has_type()) {
    // Check the default too, or the receiver would refuse the filled-in spec.
    if (r.num_workers() <= 1 && r.has_num_shards() && r.num_shards() != 1) {
      rules.Fail("resources.num_shards",
                 absl::StrCat("is ", r.num_shards(),
                              ", but one worker's default kvstore uses no shard; leave it out or "
                              "set 'kvstore.type' to dist_sync"));
    }
    return;
  }
  const std::string& type = spec.kvstore().type();
  rules.OneOf("kvstore.type", type,
              {"local", "device", "dist", "dist_sync", "dist_device_sync", "dist_sync_device",
               "dist_async", "dist_device_async", "dist_async_device"},
              {"nccl"});
  if (type == "local" || type == "device") {
    if (r.has_num_workers() && r.num_workers() != 1) {
      rules.Fail("resources.num_workers",
                 absl::StrCat("must be 1 with kvstore '", type, "', found ", r.num_workers()));
    }
    if (r.has_num_shards() && r.num_shards() != 1) {
      rules.Fail("resources.num_shards",
                 absl::StrCat("must be left out with kvstore '", type,
                              "', which uses no shard; found ", r.num_shards()));
    }
  }
}

// Keys that asynchronous training refuses, and max_staleness, which only it has.
void CheckAsynchronous(const JobSpec& spec, Rules& rules) {
  const auto& k = spec.kvstore();
  if (k.has_max_staleness())
    rules.Range<int64_t>("kvstore.max_staleness", k.max_staleness(), 0, kMaxSteps);
  if (!IsAsynchronous(spec)) {
    if (k.max_staleness() > 0) {
      rules.Fail("kvstore.max_staleness",
                 absl::StrCat("is ", k.max_staleness(),
                              ", but only kvstore 'dist_async' trains on old weights"));
    }
    return;
  }
  const auto refuse = [&](absl::string_view key, absl::string_view why) {
    rules.Fail(key, absl::StrCat("does not go together with kvstore '", k.type(), "': ", why));
  };
  const auto& t = spec.training();
  if (t.accumulate_steps() > 1)
    refuse("training.accumulate_steps", "each gradient is applied as soon as it is there");
  if (t.precision() == "fp16")
    refuse("training.precision", "'fp16' needs one scale of the loss for all workers");
  if (t.optimizer().name() == "lars" || t.optimizer().name() == "lamb") {
    refuse(
        "training.optimizer.name",
        absl::StrCat("'", t.optimizer().name(), "' needs the norms of whole tensors in each step"));
  }
}

void CheckCompression(const JobSpec& spec, Rules& rules) {
  if (!spec.kvstore().has_gradient_compression()) return;
  const auto& c = spec.kvstore().gradient_compression();
  const std::string key = "kvstore.gradient_compression";
  rules.Required(key + ".type", c.has_type());
  if (!c.has_type()) return;
  rules.OneOf(key + ".type", c.type(), {"none", "fp16", "bf16", "int8", "2bit", "1bit", "top_k"});
  const auto option = [&](const char* name, bool set, double value, const char* of, double low,
                          double high) {
    if (!set) return;
    const std::string path = absl::StrCat(key, ".", name);
    rules.Range(path, value, low, high);
    if (c.type() != of) rules.Fail(path, absl::StrCat("has no meaning for '", c.type(), "'"));
  };
  option("threshold", c.has_threshold(), c.threshold(), "2bit", 1e-20, 1e20);
  option("ratio", c.has_ratio(), c.ratio(), "top_k", 1e-6, 1.0);
}

// Keys that steps of a lane by itself refuse.
void CheckLocalSteps(const JobSpec& spec, Rules& rules) {
  const auto& k = spec.kvstore();
  if (!k.has_local_steps()) return;
  rules.Range<int64_t>("kvstore.local_steps", k.local_steps(), 1, kMaxLocalSteps);
  if (LocalSteps(spec) == 1) return;
  const auto refuse = [&](absl::string_view key, absl::string_view why) {
    rules.Fail(key, absl::StrCat("does not go together with kvstore.local_steps ", k.local_steps(),
                                 ": ", why));
  };
  const auto& t = spec.training();
  if (IsAsynchronous(spec)) {
    refuse("kvstore.type", absl::StrCat("'", k.type(), "' applies one gradient at a time"));
  }
  const std::string& compression = k.gradient_compression().type();
  if (HasErrorFeedback(spec)) {
    refuse("kvstore.gradient_compression.type",
           absl::StrCat("what '", compression,
                        "' leaves out has another meaning when a lane has trained by itself"));
  }
  if (compression == "fp16") {
    refuse("kvstore.gradient_compression.type",
           "small changes of weights are 0 in 'fp16'; 'bf16' sends as few bytes");
  }
  if (t.accumulate_steps() > 1)
    refuse("training.accumulate_steps", "a round has several batches already");
  if (t.precision() == "fp16")
    refuse("training.precision", "'fp16' needs one scale of the loss for all steps");
  const std::string& rule = t.optimizer().name();
  if (rule == "lars" || rule == "lamb") {
    refuse("training.optimizer.name", absl::StrCat("'", rule, "' is only carried out by shards"));
  }
  if (rule == "ftrl") {
    refuse("training.optimizer.name",
           "'ftrl' makes the weights from its state, which begins anew in each round");
  }
}

// Keys that replicas of the weights refuse.
void CheckReplicas(const JobSpec& spec, Rules& rules) {
  const auto& k = spec.kvstore();
  if (!WorkersUpdate(spec)) return;
  const auto refuse = [&](absl::string_view what, absl::string_view why) {
    rules.Fail("kvstore.update_on_kvstore",
               absl::StrCat("is false, which does not go together with ", what, ": ", why));
  };
  if (IsAsynchronous(spec)) {
    refuse(absl::StrCat("kvstore '", k.type(), "'"),
           "each worker's gradient is applied alone, and no worker gets those of the others");
  }
  if (LocalSteps(spec) > 1) {
    refuse(absl::StrCat("kvstore.local_steps ", k.local_steps()),
           "shards average weights there, and send the average");
  }
}

// The rest of the spec is valid.
void CheckRound(const JobSpec& spec, Rules& rules) {
  if (LocalSteps(spec) > 1 && StepSamples(spec) > kMaxGlobalBatch) {
    rules.Fail("kvstore.local_steps",
               absl::StrCat("is ", LocalSteps(spec), ": a round has ", StepSamples(spec),
                            " samples, ", kMaxGlobalBatch, " is the limit"));
  }
}

void CheckModelGraph(const job::v1::Model& model, Rules& rules) {
  if (model.has_name()) {
    rules.Fail("model.graph", "and 'model.name' exclude each other: give one of them");
  }
  if (model.has_dropout()) {
    rules.Fail("model.dropout", "has no meaning with 'model.graph': give the graph a node Dropout");
  }
  for (const GraphProblem& problem : CheckGraph(model.graph())) {
    rules.Wrong(problem.path, problem.message);
  }
}

void CheckModel(const JobSpec& spec, Rules& rules) {
  const auto& m = spec.model();
  if (m.has_graph()) {
    CheckModelGraph(m, rules);
  } else {
    rules.Required("model.name", m.has_name());
  }
  if (m.has_name()) {
    std::vector<std::string> names;
    for (const absl::string_view name : ModelNames()) names.emplace_back(name);
    rules.OneOf("model.name", m.name(), names);
  }
  if (m.has_num_classes()) {
    rules.Range<int64_t>("model.num_classes", m.num_classes(), 2, kMaxOutputs);
  }
  if (m.has_dropout()) rules.Fraction("model.dropout", m.dropout());
  if (m.has_initializer()) {
    const std::string& name = m.initializer().name();
    rules.OneOf("model.initializer.name", name, {"xavier", "he", "normal", "uniform", "zeros"});
    const bool scaled = name == "normal" || name == "uniform";
    if (m.initializer().has_scale()) {
      if (scaled) rules.Finite("model.initializer.scale", m.initializer().scale(), 0, false);
      if (!scaled)
        rules.Fail("model.initializer.scale", absl::StrCat("has no meaning for '", name, "'"));
    } else if (scaled) {
      rules.Fail("model.initializer.scale", absl::StrCat("is required for '", name, "'"));
    }
  }
  if (m.has_initial_weights()) {
    const auto path = LocalPath(m.initial_weights());
    if (!path.ok()) rules.Wrong("model.initial_weights", path.status().message());
  }
}

void CheckPrecision(const JobSpec& spec, Rules& rules) {
  const auto& t = spec.training();
  rules.OneOf("training.precision", t.precision(), {"fp32", "tf32", "bf16", "fp16"});
  if (t.precision() != "fp32" && spec.resources().device() == "cpu") {
    rules.Fail("training.precision",
               absl::StrCat("'", t.precision(), "' needs GPUs, 'resources.device' is cpu"));
  }
  const bool half = t.precision() == "bf16" || t.precision() == "fp16";
  if (half && t.optimizer().has_multi_precision() && !t.optimizer().multi_precision()) {
    rules.Fail("training.optimizer.multi_precision",
               absl::StrCat("must be true with '", t.precision(),
                            "': weights are updated in float32 always"));
  }
}

void CheckTraining(const JobSpec& spec, Rules& rules) {
  const auto& t = spec.training();
  if (!t.has_epochs() && !t.has_max_steps())
    rules.Fail("training.epochs", "or 'training.max_steps' is required");
  if (t.has_epochs()) rules.Range<int64_t>("training.epochs", t.epochs(), 1, 1000000);
  if (t.has_max_steps()) rules.Range<int64_t>("training.max_steps", t.max_steps(), 1, kMaxSteps);
  using Training = job::v1::Training;
  switch (t.batch_size_case()) {
    case Training::kBatchSizePerGpu:
      rules.Range<int64_t>("training.batch_size_per_gpu", t.batch_size_per_gpu(), 1, kMaxInt32);
      break;
    case Training::kBatchSizePerWorker:
      rules.Range<int64_t>("training.batch_size_per_worker", t.batch_size_per_worker(), 1,
                           kMaxInt32);
      break;
    case Training::kGlobalBatchSize:
      rules.Range<int64_t>("training.global_batch_size", t.global_batch_size(), 1, kMaxInt32);
      break;
    case Training::BATCH_SIZE_NOT_SET:
      rules.Fail(
          "training.global_batch_size",
          "is required (or 'training.batch_size_per_gpu', or 'training.batch_size_per_worker')");
  }
  if (t.has_accumulate_steps()) {
    rules.Range<int64_t>("training.accumulate_steps", t.accumulate_steps(), 1, kMaxAccumulateSteps);
  }
  if (t.has_precision()) CheckPrecision(spec, rules);
  CheckOptimizer(t, rules);
}

// The rest of the spec is valid.
void CheckAccumulation(const JobSpec& spec, Rules& rules) {
  const int64_t batches = AccumulateSteps(spec);
  if (batches == 1) return;
  const int64_t lanes =
      spec.resources().has_lanes() ? spec.resources().lanes() : DefaultLanes(spec);
  if (lanes * batches > kMaxStepLanes) {
    rules.Fail("training.accumulate_steps",
               absl::StrCat("is ", batches, ": a step of ", batches, " batches in ", lanes,
                            lanes == 1 ? " lane each has " : " lanes each has ", lanes * batches,
                            " lanes, ", kMaxStepLanes,
                            " is the limit; 'resources.lanes' sets the lanes of a batch"));
  }
  if (StepSamples(spec) > kMaxGlobalBatch) {
    rules.Fail("training.accumulate_steps",
               absl::StrCat("is ", batches, ": a step of ", batches, " batches has ",
                            StepSamples(spec), " samples, ", kMaxGlobalBatch, " is the limit"));
  }
}

void CheckCheckpoint(const JobSpec& spec, Rules& rules) {
  const auto& c = spec.checkpoint();
  if (c.has_storage_path()) {
    const auto path = LocalPath(c.storage_path());
    if (!path.ok()) rules.Wrong("checkpoint.storage_path", path.status().message());
  }
  if (c.has_every()) rules.Steps("checkpoint.every", c.every());
  if (c.has_every_seconds()) {
    if (c.every_seconds() != 0)  // 0 means never
      rules.Range("checkpoint.every", c.every_seconds(), 1.0, kMaxSeconds);
    if (c.has_every()) {
      rules.Fail("checkpoint.every", "is given in steps or epochs and as a duration: give one");
    }
  }
  if (c.has_keep_latest()) rules.Range<int64_t>("checkpoint.keep_latest", c.keep_latest(), 1, 1000);
  if (c.has_keep_best()) rules.Range<int64_t>("checkpoint.keep_best", c.keep_best(), 0, 1000);
}

void CheckRecovery(const JobSpec& spec, Rules& rules) {
  const auto& r = spec.recovery();
  if (r.has_max_restarts())
    rules.Range<int64_t>("recovery.max_restarts", r.max_restarts(), 0, 1000);
  if (r.has_backoff_initial_seconds())
    rules.Range("recovery.backoff.initial", r.backoff_initial_seconds(), 0.0, 86400.0);
  if (r.has_backoff_max_seconds()) {
    rules.Range("recovery.backoff.max", r.backoff_max_seconds(), 0.0, 86400.0);
    const double initial =
        r.has_backoff_initial_seconds() ? r.backoff_initial_seconds() : kBackoffInitialSeconds;
    if (r.backoff_max_seconds() < initial) {
      rules.Fail("recovery.backoff.max",
                 absl::StrCat("must not be below 'recovery.backoff.initial', which is ", initial,
                              "s, found ", r.backoff_max_seconds(), "s"));
    }
  }
  for (const std::string& reason : r.never_retry_on())
    rules.OneOf("recovery.never_retry_on", reason, FailureReasons());
  if (!r.has_residuals()) return;
  const char* const key = "recovery.residuals";
  rules.OneOf(key, r.residuals(), {"rollback", "drop"});
  if (!HasErrorFeedback(spec)) {
    rules.Fail(key,
               "has no meaning without error feedback; only kvstore.gradient_compression '2bit', "
               "'1bit' and 'top_k' have it");
  } else if (IsAsynchronous(spec) && KeepsResiduals(spec)) {
    rules.Fail(key, absl::StrCat("'rollback' does not go together with kvstore.type '",
                                 spec.kvstore().type(),
                                 "': no two runs of it have the same bits; want 'drop'"));
  }
}

void CheckRest(const JobSpec& spec, Rules& rules) {
  if (spec.evaluation().has_every()) {
    if (spec.evaluation().every().has_steps()) {
      rules.Wrong("evaluation.every",
                  "takes whole epochs, like '1 epoch'; steps are not supported in this version");
    } else {
      rules.Steps("evaluation.every", spec.evaluation().every());
    }
  }
  const auto& l = spec.limits();
  if (l.has_active_deadline_seconds())
    rules.Range("limits.active_deadline", l.active_deadline_seconds(), 0.0, kMaxSeconds);
  if (l.has_ttl_after_finished_seconds())
    rules.Range("limits.ttl_after_finished", l.ttl_after_finished_seconds(), 0.0, kMaxSeconds);
  if (l.has_stall_timeout_seconds())
    rules.Range("limits.stall_timeout", l.stall_timeout_seconds(), 1.0, 86400.0);
  if (l.has_orphan_timeout_seconds())
    rules.Range("limits.orphan_timeout", l.orphan_timeout_seconds(), 1.0, 7 * 86400.0);
}

}  // namespace

std::string ModelTitle(const job::v1::Model& model) {
  return model.has_graph() ? "graph" : model.name();
}

const std::vector<std::string>& FailureReasons() {
  static const auto& reasons = *new std::vector<std::string>{
      "InvalidSpec",         "DataMissing",       "GpuOutOfMemory", "HostOutOfMemory",
      "NonFiniteLoss",       "WorkerLost",        "ShardLost",      "Stalled",
      "DeadlineExceeded",    "CheckpointCorrupt", "NcclTimeout",    "InternalError",
      "MaxRestartsExceeded",
  };
  return reasons;
}

int64_t DeviceCount(const JobSpec& spec) {
  const auto& r = spec.resources();
  const int64_t workers = r.has_num_workers() ? r.num_workers() : 1;
  int64_t devices = r.devices_size() > 0 ? r.devices_size() : 1;
  if (r.has_gpus_per_worker()) devices = r.gpus_per_worker();
  return workers * devices;
}

int64_t GlobalBatch(const JobSpec& spec) {
  const auto& t = spec.training();
  if (t.has_batch_size_per_gpu()) return t.batch_size_per_gpu() * DeviceCount(spec);
  if (t.has_batch_size_per_worker()) {
    const auto& r = spec.resources();
    return t.batch_size_per_worker() * (r.has_num_workers() ? r.num_workers() : 1);
  }
  return t.global_batch_size();
}

bool IsAsynchronous(const JobSpec& spec) {
  return absl::StrContains(spec.kvstore().type(), "async");
}

bool IsCompressed(const JobSpec& spec) {
  const auto& compression = spec.kvstore().gradient_compression();
  return compression.has_type() && compression.type() != "none";
}

bool HasErrorFeedback(const JobSpec& spec) {
  const std::string& type = spec.kvstore().gradient_compression().type();
  return type == "2bit" || type == "1bit" || type == "top_k";
}

bool KeepsResiduals(const JobSpec& spec) { return spec.recovery().residuals() == "rollback"; }

int32_t AccumulateSteps(const JobSpec& spec) {
  return std::max(1, spec.training().accumulate_steps());
}

bool WorkersUpdate(const JobSpec& spec) {
  const auto& k = spec.kvstore();
  return k.has_update_on_kvstore() && !k.update_on_kvstore() && k.type() != "local" &&
         k.type() != "device";
}

int32_t LocalSteps(const JobSpec& spec) { return std::max(1, spec.kvstore().local_steps()); }

int64_t StepBatches(const JobSpec& spec) {
  return int64_t{AccumulateSteps(spec)} * LocalSteps(spec);
}

int64_t StepSamples(const JobSpec& spec) { return StepBatches(spec) * GlobalBatch(spec); }

int32_t DefaultLanes(const JobSpec& spec) {
  const auto devices = static_cast<int32_t>(DeviceCount(spec));
  const auto& r = spec.resources();
  if (r.lane_weights_size() > 0 || r.device() == "gpu" || IsAsynchronous(spec) ||
      IsCompressed(spec) || LocalSteps(spec) > 1 || !SampleCoupling(spec.model()).empty()) {
    return devices;
  }
  return std::max(devices, LanesOfBatch(GlobalBatch(spec)));
}

std::vector<Violation> Validate(const JobSpec& spec) {
  std::vector<Violation> out;
  Rules rules(out);
  if (spec.version() == 0) {
    rules.Wrong("version", "is missing: write version: 1");
  } else if (spec.version() != 1) {
    rules.Wrong("version", absl::StrCat("must be 1, found ", spec.version()));
  }
  if (!IsName(spec.name())) {
    rules.Wrong("name",
                absl::StrCat("must be 1 to 63 of a-z, 0-9 and '-', not beginning with '-', found ",
                             Shown(spec.name())));
  }
  if (spec.description().size() > 1024) {
    rules.Wrong("description",
                absl::StrCat("has ", spec.description().size(), " bytes, 1024 is the limit"));
  }
  CheckLabels(spec, rules);
  CheckResources(spec, rules);
  CheckModel(spec, rules);
  CheckData(spec, rules);
  CheckKvStore(spec, rules);
  CheckAsynchronous(spec, rules);
  CheckCompression(spec, rules);
  CheckLocalSteps(spec, rules);
  CheckReplicas(spec, rules);
  CheckTraining(spec, rules);
  CheckLoss(spec, rules);
  CheckCheckpoint(spec, rules);
  CheckRecovery(spec, rules);
  CheckRest(spec, rules);
  if (out.empty()) CheckAccumulation(spec, rules);
  if (out.empty()) CheckRound(spec, rules);
  return out;
}

absl::Status ValidateSpec(const JobSpec& spec) {
  const std::vector<Violation> violations = Validate(spec);
  if (violations.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(
      violations, "; ", [](std::string* out, const Violation& v) { out->append(v.message); }));
}

void FillDefaults(JobSpec& spec) {
  auto& kvstore = *spec.mutable_kvstore();
  if (kvstore.type() == "dist") kvstore.set_type("dist_sync");  // another spelling
  if (kvstore.type() == "dist_async_device") kvstore.set_type("dist_device_async");  // likewise
  if (!IsAsynchronous(spec)) kvstore.clear_max_staleness();            // 0 says what happens anyway
  if (LocalSteps(spec) == 1) kvstore.clear_local_steps();              // likewise
  if (kvstore.update_on_kvstore()) kvstore.clear_update_on_kvstore();  // likewise
  if (!IsCompressed(spec)) kvstore.clear_gradient_compression();
  if (IsCompressed(spec)) {
    auto& c = *kvstore.mutable_gradient_compression();
    if (c.type() == "2bit" && !c.has_threshold()) c.set_threshold(0.5);
    if (c.type() == "top_k" && !c.has_ratio()) c.set_ratio(0.01);
  }
  auto& recovery = *spec.mutable_recovery();
  if (HasErrorFeedback(spec) && !recovery.has_residuals()) {
    recovery.set_residuals(IsAsynchronous(spec) ? "drop" : "rollback");
  }
  // As MXNet's Trainer. If `auto` finds no GPU, `device` does the same as `local`.
  const bool one = !spec.resources().has_num_workers() || spec.resources().num_workers() == 1;
  if (!kvstore.has_type() && one && spec.resources().device() != "cpu") kvstore.set_type("device");
  auto& checkpoint = *spec.mutable_checkpoint();
  if (!checkpoint.has_every() && !checkpoint.has_every_seconds()) {
    checkpoint.set_every_seconds(kCheckpointEverySeconds);
  }
  // Two ways to write the same model, and the same step.
  if (spec.model().dropout() == 0) spec.mutable_model()->clear_dropout();
  if (AccumulateSteps(spec) == 1) spec.mutable_training()->clear_accumulate_steps();
  if (spec.model().has_graph()) FillGraphDefaults(*spec.mutable_model()->mutable_graph());
  FillLossDefaults(spec);
  FillDataDefaults(*spec.mutable_data());
  FillTransformDefaults(*spec.mutable_data());
  if (!spec.resources().has_lanes()) spec.mutable_resources()->set_lanes(DefaultLanes(spec));
  FillOptimizerDefaults(*spec.mutable_training()->mutable_optimizer());
  FillScheduleDefaults(*spec.mutable_training()->mutable_optimizer());
  FillFirstDefaults(spec);
}

void FillFirstDefaults(JobSpec& spec) {
  auto& r = *spec.mutable_resources();
  if (!r.has_num_workers()) r.set_num_workers(1);
  if (!r.has_gpus_per_worker()) r.set_gpus_per_worker(r.devices_size() > 0 ? r.devices_size() : 1);
  if (!r.has_lanes()) r.set_lanes(static_cast<int32_t>(DeviceCount(spec)));
  if (!r.has_num_shards()) r.set_num_shards(1);
  if (!r.has_min_workers()) r.set_min_workers(r.num_workers());
  if (!r.has_device()) r.set_device("auto");
  auto& m = *spec.mutable_model();
  // Resolve knows the characters of a text. A model with num_outputs, which came later, has none.
  const bool text = spec.data().format() == "text";
  if (!m.has_num_classes() && !text && !m.has_num_outputs()) m.set_num_classes(10);
  if (!m.has_initializer()) m.mutable_initializer()->set_name("xavier");
  auto& d = *spec.mutable_data();
  if (!d.has_shuffle()) d.set_shuffle(true);
  if (!d.has_partition()) d.set_partition("global");
  if (!d.has_prefetch_batches()) d.set_prefetch_batches(2);
  if (d.format() == "synthetic_digits") {
    if (!d.has_train_samples()) d.set_train_samples(60000);
    if (!d.has_test_samples()) d.set_test_samples(10000);
  }
  auto& k = *spec.mutable_kvstore();
  if (!k.has_type()) k.set_type(r.num_workers() > 1 ? "dist_sync" : "local");
  if (k.type() == "dist_sync_device") k.set_type("dist_device_sync");  // another spelling
  auto& t = *spec.mutable_training();
  if (!t.has_loss()) t.set_loss("softmax_cross_entropy");
  if (!t.has_precision()) t.set_precision("fp32");
  if (!t.has_seed()) t.set_seed(0);
  if (!t.has_deterministic()) t.set_deterministic(r.device() != "gpu");
  auto& o = *t.mutable_optimizer();
  if (!o.has_name()) o.set_name("sgd");
  if (!o.has_momentum()) o.set_momentum(0);
  if (!o.has_nesterov()) o.set_nesterov(false);
  if (!o.has_weight_decay()) o.set_weight_decay(0);
  if (!o.has_multi_precision()) o.set_multi_precision(true);
  if (!o.has_lr_schedule()) o.mutable_lr_schedule()->set_name("constant");
  auto& s = *o.mutable_lr_schedule();
  if (s.name() == "step" && !s.has_factor()) s.set_factor(0.1);
  if (s.name() == "cosine" && !s.has_min_rate()) s.set_min_rate(0);
  auto& e = *spec.mutable_evaluation();
  if (!e.has_every()) e.mutable_every()->set_epochs(1);
  if (!e.has_metric()) e.set_metric("accuracy");
  auto& c = *spec.mutable_checkpoint();
  if (!c.has_keep_latest()) c.set_keep_latest(3);
  if (!c.has_keep_best()) c.set_keep_best(0);
  if (!c.has_strict()) c.set_strict(false);
  auto& y = *spec.mutable_recovery();
  if (!y.has_max_restarts()) y.set_max_restarts(3);
  if (!y.has_backoff_initial_seconds()) y.set_backoff_initial_seconds(kBackoffInitialSeconds);
  if (!y.has_backoff_max_seconds())
    y.set_backoff_max_seconds(std::max(kBackoffMaxSeconds, y.backoff_initial_seconds()));
  if (y.never_retry_on_size() == 0) {
    for (const char* reason : {"InvalidSpec", "GpuOutOfMemory", "NonFiniteLoss", "DataMissing"})
      y.add_never_retry_on(reason);
  }
  auto& l = *spec.mutable_limits();
  if (!l.has_active_deadline_seconds()) l.set_active_deadline_seconds(0);
  if (!l.has_stall_timeout_seconds()) l.set_stall_timeout_seconds(300);
  if (!l.has_orphan_timeout_seconds()) l.set_orphan_timeout_seconds(600);
}

}  // namespace capstan::training::spec
