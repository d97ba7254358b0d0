// The plan shows the consequences of a resolved spec to the person who submits it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "training/chunks/placement.h"
#include "training/chunks/shard_memory.h"
#include "training/compress/gradient_layout.h"
#include "training/graph/models.h"
#include "training/spec/graph_message.h"
#include "training/spec/resolve.h"
#include "training/spec/rules.h"

namespace capstan::training::spec {
namespace {

std::string Bytes(double bytes, bool upwards = false) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  if (upwards) bytes = std::ceil(bytes * 10) / 10;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
  return text;
}

// An upper bound, which must stay one after rounding.
std::string BytesAtMost(int64_t bytes) { return Bytes(static_cast<double>(bytes), true); }

// Floats of the fullest shard. 0: there is no shard, or Resolve did not make the spec.
int64_t MostFloatsOfAShard(const job::v1::ResolvedSpec& spec) {
  if (!UsesShards(spec)) return 0;
  const absl::StatusOr<FlatLayout> layout = MakeLayout(spec);
  const absl::StatusOr<Placement> placement = MakePlacement(spec);
  if (!layout.ok() || !placement.ok()) return 0;
  int64_t most = 0;
  for (int32_t shard = 0; shard < spec.num_shards(); ++shard) {
    most = std::max(most, RangeOf(*layout, placement->Run(shard)).size);
  }
  return most;
}

std::string Count(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

// For one lane per device: another number of workers gives other bits.
constexpr char kLanesFollow[] = "; lanes follow num_workers, set resources.lanes to keep the bits";

// The reason for the number of lanes. Empty if the job file sets it.
std::string WhyLanes(const job::v1::ResolvedSpec& spec) {
  const job::v1::JobSpec& file = spec.spec();
  const int32_t batches = AccumulateSteps(file);
  const int32_t lanes = spec.lanes() / batches;
  if (lanes != DefaultLanes(file) || file.resources().lane_weights_size() > 0) return "";
  const char* of = batches == 1 ? "" : " of a batch";
  if (IsAsynchronous(file))
    return "one lane per device, the default: each gradient is applied alone";
  if (IsCompressed(file)) {
    return absl::StrCat("one lane", of,
                        " per device, the default: each lane's gradient is compressed by itself",
                        kLanesFollow);
  }
  if (LocalSteps(file) > 1) {
    return absl::StrCat("one lane per device, the default: each lane trains by itself",
                        kLanesFollow);
  }
  const std::string coupling = SampleCoupling(file.model());
  if (!coupling.empty()) {
    return absl::StrCat("one lane", of, " per device, the default: ", coupling,
                        " couples the samples of a lane", kLanesFollow);
  }
  if (file.resources().device() == "gpu") {
    return absl::StrCat("one lane", of, " per device, the default on GPUs", kLanesFollow);
  }
  if (lanes == 1 || lanes != LanesOfBatch(spec.global_batch() / batches)) {
    return absl::StrCat("one lane", of, " per device, the default", kLanesFollow);
  }
  return absl::StrCat(lanes, " lanes", of, " by default, of at least ", kFewSamplesPerLane,
                      " samples: the same result on 1 to ", lanes, " devices");
}

// The most bytes of a tensor's entry in our headers, of everything small beside a file, and of a
// line of the step log.
constexpr int64_t kHeaderBytesPerTensor = 300;
constexpr int64_t kSmallBytes = 4096;
constexpr int64_t kLogBytesPerStep = 160;
constexpr int64_t kNormLogBytes = 40;  // more, if it has a gradient_norm
constexpr int32_t kKeptByDefault = 3;

int64_t Elements(const job::v1::ParameterTensor& parameter) {
  int64_t elements = 1;
  for (const int64_t dimension : parameter.shape()) elements *= dimension;
  return elements;
}

int64_t StateFloats(const job::v1::ResolvedSpec& spec) {
  const auto optimizer = MakeOptimizer(spec);
  return optimizer.ok() ? (*optimizer)->state_floats_per_weight() : kMaxStateFloatsPerWeight;
}

int64_t MostLanesOfAWorker(const job::v1::ResolvedSpec& spec) {
  const int64_t workers = std::max(1, spec.num_workers());
  return (spec.lanes() + workers - 1) / workers;
}

// Words of the compressed gradients of a step that a worker sends at most. 0: nothing is compressed.
int64_t CompressedWords(const job::v1::ResolvedSpec& spec) {
  const absl::StatusOr<FlatLayout> layout = MakeLayout(spec);
  if (!IsCompressed(spec.spec()) || !layout.ok()) return 0;
  return GradientLayout(*layout, GradientFormatOf(spec)).total_words() * MostLanesOfAWorker(spec);
}

// The most bytes of a step's gradients that a worker sends, for people.
std::string Pushed(const job::v1::ResolvedSpec& spec) {
  const std::string flat = Bytes(4.0 * static_cast<double>(spec.flat_floats()));
  const int64_t words = CompressedWords(spec);
  if (words == 0) return flat;
  const int64_t lanes = MostLanesOfAWorker(spec);
  return absl::StrCat(Bytes(4.0 * static_cast<double>(words)), " in ",
                      spec.spec().kvstore().gradient_compression().type(), " (",
                      lanes > 1 ? absl::StrCat(lanes, " lanes; ") : "", flat,
                      " without compression)");
}

}  // namespace

int64_t StorageNeed::Most() const {
  const double bytes = static_cast<double>(checkpoints) * static_cast<double>(checkpoint_bytes) +
                       static_cast<double>(weights_bytes) + static_cast<double>(log_bytes);
  return bytes < 9e18 ? checkpoints * checkpoint_bytes + weights_bytes + log_bytes : INT64_MAX;
}

StorageNeed StorageNeedOf(const job::v1::ResolvedSpec& spec) {
  const job::v1::Checkpoint& file = spec.spec().checkpoint();
  const int64_t state = StateFloats(spec);
  StorageNeed need;
  const bool marks = IsAsynchronous(spec.spec());
  const int64_t tensors = ((state > 0 ? 2 : 1) + (marks ? 1 : 0)) * int64_t{spec.chunk_count()};
  need.checkpoint_bytes = 4 * spec.flat_floats() * (1 + state) + kHeaderBytesPerTensor * tensors +
                          kSmallBytes * (1 + std::max(1, spec.num_shards()));
  if (marks) need.checkpoint_bytes += 8 * int64_t{spec.chunk_count()} * (spec.lanes() + 1);
  if (KeepsResiduals(spec.spec())) {
    const int64_t lanes = spec.lanes();
    need.checkpoint_bytes += lanes * (4 * spec.flat_floats() + kHeaderBytesPerTensor) +
                             kSmallBytes * std::min<int64_t>(spec.num_workers(), lanes);
  }
  int64_t versions = 1;  // the last one
  if (spec.checkpoint_every_steps() > 0) {
    versions = std::max<int64_t>(1, (spec.total_steps() - 1) / spec.checkpoint_every_steps() + 1);
  } else if (file.every_seconds() > 0) {
    versions = spec.total_steps();  // the duration of a step is not known yet
  }
  const int64_t kept =
      (file.has_keep_latest() ? file.keep_latest() : kKeptByDefault) + int64_t{file.keep_best()};
  need.checkpoints = std::min(versions, kept + 1);
  need.weights_bytes = kSmallBytes;
  for (const auto& parameter : spec.parameters()) {
    need.weights_bytes += 4 * Elements(parameter) + kHeaderBytesPerTensor;
  }
  need.log_bytes =
      (kLogBytesPerStep + (ClipNorm(spec) > 0 ? kNormLogBytes : 0)) * spec.total_steps();
  return need;
}

std::string BytesText(int64_t bytes) { return Bytes(static_cast<double>(bytes)); }

std::string PlanText(const job::v1::ResolvedSpec& spec) {
  const auto& file = spec.spec();
  int64_t weights = 0;
  int64_t statistics = 0;
  for (const auto& parameter : spec.parameters()) {
    (parameter.is_stat() ? statistics : weights) += Elements(parameter);
  }
  std::string out = absl::StrCat("Plan  ", Count(spec.num_workers(), "worker"), " x ",
                                 Count(spec.devices_per_worker(), "device"));
  if (UsesShards(spec)) absl::StrAppend(&out, " + ", Count(spec.num_shards(), "shard"));
  const std::string not_here = WhyTheHostUpdates(spec);
  absl::StrAppend(&out, ", ", file.kvstore().type(),
                  file.kvstore().type() != "device" ? ""
                  : LocalSteps(file) > 1            ? " (as local)"
                  : not_here.empty()
                      ? " (GPUs add and update; CPUs as local)"
                      : absl::StrCat(" (GPUs add, the host updates ", not_here, "; CPUs as local)"),
                  file.resources().min_workers() < spec.num_workers()
                      ? absl::StrCat(", starts with ", file.resources().min_workers(), " or more\n")
                      : ", start all or none\n");
  const int32_t least = file.resources().min_workers();
  const std::string each = absl::StrCat(Count(least, "worker"), least == 1 ? " has " : " have ",
                                        spec.devices_per_worker(), least == 1 ? "" : " each");
  absl::StrAppend(&out, "      on ",
                  file.resources().device() == "gpu"   ? "GPUs only"
                  : file.resources().device() == "cpu" ? "CPUs"
                                                       : "GPUs if " + each + ", else on CPUs",
                  "\n");
  std::string model = ModelTitle(file.model());
  if (file.model().has_graph()) {
    absl::StrAppend(&model, " of ", Count(file.model().graph().nodes_size(), "node"));
  }
  if (file.model().dropout() > 0)
    absl::StrAppend(&model, " (dropout ", file.model().dropout(), ")");
  absl::StrAppend(&out, "      ", model, ", ", weights, " parameters",
                  statistics > 0 ? absl::StrCat(" and ", statistics, " running statistics") : "",
                  "; ", file.data().has_uri() ? file.data().uri() : file.data().format(), ", ",
                  spec.dataset().train_batches() > 0
                      ? absl::StrCat(spec.dataset().train_batches(), " of 5 batches, ")
                      : "",
                  spec.dataset().train_samples(), " + ", spec.dataset().test_samples(),
                  " samples\n");
  if (const absl::string_view about =
          file.model().has_graph() ? "" : AboutModel(file.model().name());
      !about.empty()) {
    absl::StrAppend(&out, "      ", about, "\n");
  }
  if (file.data().transforms_size() > 0) {
    out += "      images ";
    for (int i = 0; i < file.data().transforms_size(); ++i) {
      const job::v1::Transform& transform = file.data().transforms(i);
      const auto* kind = transform.GetReflection()->GetOneofFieldDescriptor(
          transform, transform.GetDescriptor()->FindOneofByName("kind"));
      absl::StrAppend(&out, i == 0 ? "" : ", ", kind == nullptr ? "?" : kind->name());
    }
    const auto input = InputShape(file.data(), spec.dataset());
    if (input.ok()) absl::StrAppend(&out, " -> ", absl::StrJoin(*input, " x "));
    out += "\n";
  }
  const int64_t last =
      spec.dataset().train_samples() - (spec.steps_per_epoch() - 1) * spec.global_batch();
  const int64_t batches = StepBatches(file);
  absl::StrAppend(&out, "      global batch ", spec.global_batch() / batches);
  if (batches > 1) {
    absl::StrAppend(&out, " x ", batches, LocalSteps(file) > 1 ? " local steps" : " accumulated",
                    " = ", spec.global_batch(), " samples");
  }
  absl::StrAppend(&out, " in ", Count(spec.lanes(), "lane"), ", ",
                  Count(spec.steps_per_epoch(), "step"), "/epoch");
  if (file.data().partition() == "global" && last != spec.global_batch())
    absl::StrAppend(&out, " (the last of ", last, ")");
  absl::StrAppend(&out, ", ", Count(spec.total_steps(), "step"), "\n");
  if (const std::string why = WhyLanes(spec); !why.empty()) {
    absl::StrAppend(&out, "      ", why, "\n");
  }
  if (LocalSteps(file) > 1) {
    absl::StrAppend(&out, "      a lane makes ", LocalSteps(file),
                    " steps of its own in a step of the job, then the weights of all lanes are "
                    "averaged by samples; the optimizer's state begins anew each time\n");
  }
  if (IsAsynchronous(file)) {
    absl::StrAppend(&out,
                    "      a shard applies the mean gradient of a lane as soon as it is there; ",
                    MaxStaleness(spec) == kUnboundedStaleness
                        ? "a lane may be any number of steps ahead"
                        : absl::StrCat("a lane is at most ", Count(MaxStaleness(spec), "step"),
                                       " ahead of the slowest"),
                    spec.lanes() > 1 ? "; two runs do not give the same bits\n" : "\n");
  }
  absl::StrAppend(&out, "      ", Bytes(4.0 * (weights + statistics)), " of weights in ",
                  Count(spec.chunk_count(), "chunk"));
  if (UsesShards(spec)) {
    const std::string flat = Bytes(4.0 * spec.flat_floats());
    absl::StrAppend(&out, "; per step and worker: push ", Pushed(spec), ", pull ", flat);
  }
  out += "\n";
  if (WorkersUpdate(file)) {
    absl::StrAppend(
        &out,
        "      workers pull the sums of gradients and update their own weights; a worker "
        "that joins or lost its stream pulls ",
        Bytes(4.0 * static_cast<double>(spec.flat_floats() * (1 + StateFloats(spec)))),
        ": weights and optimizer state\n");
  }
  if (GradientFormatOf(spec).has_feedback()) {
    absl::StrAppend(&out, "      what ", file.kvstore().gradient_compression().type(),
                    " leaves out of a gradient is added to the lane's next one; ",
                    KeepsResiduals(file)
                        ? absl::StrCat("checkpoints have it, ",
                                       Bytes(4.0 * static_cast<double>(spec.flat_floats()) *
                                             static_cast<double>(spec.lanes())),
                                       " more each, and a lost worker costs the steps since the "
                                       "last one (recovery.residuals: rollback)\n")
                        : std::string("it is lost if the lane moves to another task, or if the "
                                      "job goes back to a checkpoint (recovery.residuals: "
                                      "drop)\n"));
  }
  if (const int64_t floats = MostFloatsOfAShard(spec); floats > 0) {
    absl::StrAppend(
        // Nothing closes the streams of an asynchronous job above this number (shard_memory.h).
        &out, "      memory of a shard ", IsAsynchronous(file) ? "about " : "at most ",
        BytesAtMost(IsAsynchronous(file)
                        ? training::MostAsynchronousShardBytes(floats, StateFloats(spec),
                                                               spec.num_workers())
                        : training::MostShardBytes(floats, StateFloats(spec), spec.lanes(),
                                                   WorkersUpdate(file))),
        "\n");
  }
  if (spec.checkpoint_every_steps() > 0) {
    absl::StrAppend(&out, "      checkpoint every ", Count(spec.checkpoint_every_steps(), "step"));
  } else if (file.checkpoint().every_seconds() > 0) {
    absl::StrAppend(&out, "      checkpoint every ", file.checkpoint().every_seconds(), " s");
  } else {
    absl::StrAppend(&out, "      checkpoint only at the end");
  }
  absl::StrAppend(&out, "; at most ", Count(file.recovery().max_restarts(), "restart"), "\n");
  if (const double ttl = file.limits().ttl_after_finished_seconds(); ttl > 0) {
    absl::StrAppend(&out, "      its checkpoints, weights included, are removed ",
                    absl::FormatDuration(absl::Seconds(ttl)), " after its end\n");
  }
  const StorageNeed need = StorageNeedOf(spec);
  const std::string each_checkpoint = BytesAtMost(need.checkpoint_bytes);
  absl::StrAppend(&out, "      files of at most ", BytesAtMost(need.Most()), ": ",
                  need.checkpoints == 1 ? absl::StrCat("a checkpoint of ", each_checkpoint)
                                        : absl::StrCat(need.checkpoints, " checkpoints of ",
                                                       each_checkpoint, " at a time"),
                  ", weights of ", BytesAtMost(need.weights_bytes), "\n");
  out +=
      "      files lie on the coordinator's host; a host that does not share the folder sends them "
      "over gRPC\n";
  if (UsesShards(spec) && CompressedWords(spec) >= spec.flat_floats()) {
    absl::StrAppend(&out, "      warning: a worker sends ", MostLanesOfAWorker(spec),
                    " compressed gradients, together no smaller than one without compression; "
                    "fewer resources.lanes send less\n");
  }
  const job::v1::Optimizer& optimizer = file.training().optimizer();
  if (GradientFormatOf(spec).has_feedback() && optimizer.momentum() > 0) {
    absl::StrAppend(&out, "      warning: momentum ", optimizer.momentum(), " with ",
                    file.kvstore().gradient_compression().type(),
                    " may lose accuracy: what is left out of a gradient is sent later, which acts "
                    "like momentum\n");
  }
  const job::v1::LrSchedule& schedule = optimizer.lr_schedule();
  if (optimizer.name() == "ftrl" && (schedule.name() != "constant" || schedule.has_warmup())) {
    out +=
        "      warning: with ftrl, all weights change by the factor by which the learning rate "
        "changes; a rate near 0 makes all weights nearly 0\n";
  }
  if (LocalSteps(file) > 1 && optimizer.name() == "rmsprop") {
    absl::StrAppend(&out,
                    "      warning: with rmsprop, a lane's first step of each round is up to ",
                    absl::StrFormat("%.1f", 1 / std::sqrt(1 - optimizer.alpha())),
                    " times as long as the learning rate, because its state begins anew\n");
  }
  // A spec from the wire may have no lanes.
  const int64_t per_lane =
      spec.global_batch() / (int64_t{std::max(1, spec.lanes())} * LocalSteps(file));
  if (per_lane < kFewSamplesPerLane) {
    absl::StrAppend(&out, "      warning: ", Count(per_lane, "sample"), " per lane; below ",
                    kFewSamplesPerLane, " a CPU spends more on lanes than on training\n");
  }
  const int64_t devices = DeviceCount(file);
  if (devices > 1 && spec.lanes() > devices && spec.lanes() % devices != 0) {
    absl::StrAppend(&out, "      warning: ", spec.lanes(), " lanes on ", devices,
                    " devices: some compute ", spec.lanes() / devices + 1, ", others ",
                    spec.lanes() / devices, "; resources.lanes: ", devices,
                    " shares them evenly, with other bits\n");
  }
  return out;
}

}  // namespace capstan::training::spec
