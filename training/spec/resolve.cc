#include "training/spec/resolve.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/unknown_field_set.h"
#include "google/protobuf/util/message_differencer.h"
#include "training/codec/sha256.h"
#include "training/graph/models.h"
#include "training/graph/tensors.h"
#include "training/norm/tensor_norms.h"
#include "training/spec/graph_message.h"
#include "training/spec/rules.h"
#include "training/spec/validate.h"

namespace capstan::training::spec {
namespace {

using job::v1::JobSpec;
using job::v1::ResolvedSpec;

constexpr absl::string_view kSynchronous[] = {"local", "device", "dist_sync", "dist_device_sync"};

// The key that sets the batch size, in quotes.
absl::string_view BatchKey(const job::v1::Training& training) {
  if (training.has_batch_size_per_gpu()) return "'training.batch_size_per_gpu'";
  if (training.has_batch_size_per_worker()) return "'training.batch_size_per_worker'";
  return "'training.global_batch_size'";
}

// "labels up to 9", or "targets of 2 numbers".
std::string TargetsOf(const common::v1::DatasetInfo& dataset) {
  const int32_t size = dataset.target_size();
  if (size == 0) return absl::StrCat("labels up to ", dataset.num_classes() - 1);
  return absl::StrCat("targets of ", size, size == 1 ? " number" : " numbers");
}

absl::Status CheckDataset(const JobSpec& spec, const common::v1::DatasetInfo& dataset) {
  if (dataset.train_samples() < 1)
    return absl::InvalidArgumentError("the training set has no samples");
  if (dataset.test_samples() < 0 || dataset.channels() < 1 || dataset.height() < 1 ||
      dataset.width() < 1) {
    return absl::InvalidArgumentError(absl::StrCat("the data set says ", dataset.test_samples(),
                                                   " test samples of ", dataset.channels(), "x",
                                                   dataset.height(), "x", dataset.width()));
  }
  const bool numbers = spec.model().num_outputs() > 0;
  if (dataset.target_size() != spec.model().num_outputs() ||
      dataset.num_classes() > spec.model().num_classes()) {
    return absl::InvalidArgumentError(
        absl::StrCat(numbers ? "'model.num_outputs' is " : "'model.num_classes' is ",
                     numbers ? spec.model().num_outputs() : spec.model().num_classes(),
                     ", the data set has ", TargetsOf(dataset)));
  }
  const int64_t batch = GlobalBatch(spec);
  if (batch > dataset.train_samples()) {
    return absl::InvalidArgumentError(
        absl::StrCat(BatchKey(spec.training()),
                     spec.training().has_global_batch_size() ? " is " : " makes a global batch of ",
                     batch, ", the training set has ", dataset.train_samples(), " samples"));
  }
  const int64_t step = StepSamples(spec);
  if (step > dataset.train_samples()) {
    return absl::InvalidArgumentError(
        absl::StrCat(LocalSteps(spec) > 1 ? "'kvstore.local_steps'" : "'training.accumulate_steps'",
                     " is ", StepBatches(spec), " and makes a step of ", step,
                     " samples, the training set has ", dataset.train_samples(), " samples"));
  }
  if (spec.resources().lanes() > batch) {
    return absl::InvalidArgumentError(absl::StrCat("'resources.lanes' is ",
                                                   spec.resources().lanes(), ", the batch has ",
                                                   batch, " samples: each lane must have one"));
  }
  return absl::OkStatus();
}

// The schedule has the same rule. Here the message has the key and the length of the job.
absl::Status CheckWarmup(const ResolvedSpec& spec) {
  const job::v1::LrSchedule& schedule = spec.spec().training().optimizer().lr_schedule();
  if (schedule.name() != "cosine" && schedule.name() != "polynomial") return absl::OkStatus();
  const job::v1::Period& warmup = schedule.warmup();
  const int64_t steps =
      warmup.has_epochs() ? warmup.epochs() * spec.steps_per_epoch() : warmup.steps();
  if (steps < spec.total_steps()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "'training.optimizer.lr_schedule.warmup' is ", steps, " steps, the job has ",
      spec.total_steps(), ": '", schedule.name(), "' must have some after its warm-up"));
}

// The weights of a step's lanes: those of a batch's lanes, once for each batch. Empty: equal.
std::vector<double> LaneWeights(const JobSpec& spec) {
  const auto& weights = spec.resources().lane_weights();
  std::vector<double> of_step;
  for (int32_t i = 0; i < AccumulateSteps(spec); ++i) {
    of_step.insert(of_step.end(), weights.begin(), weights.end());
  }
  return of_step;
}

// The part of a spec that decides the numbers, without who computes them, where, and how often they
// are saved.
ResolvedSpec NumbersOf(const ResolvedSpec& resolved) {
  ResolvedSpec numbers = resolved;
  numbers.clear_job_id();
  numbers.clear_storage_path();
  numbers.clear_num_workers();
  numbers.clear_devices_per_worker();
  numbers.clear_num_shards();
  numbers.clear_training_digest();
  numbers.clear_checkpoint_every_steps();
  JobSpec& spec = *numbers.mutable_spec();
  spec.clear_name();
  spec.clear_description();
  spec.clear_labels();
  const std::vector<double> weights = LaneWeights(spec);
  spec.clear_resources();
  spec.mutable_resources()->mutable_lane_weights()->Add(weights.begin(), weights.end());
  spec.mutable_training()->clear_accumulate_steps();  // samples and lanes of a step say the same
  spec.clear_checkpoint();
  spec.clear_limits();
  spec.clear_recovery();
  spec.clear_outputs();
  if (spec.evaluation().has_metric()) spec.mutable_evaluation()->set_metric("accuracy");
  spec.mutable_data()->clear_reader_threads();
  // The type does not decide the numbers as long as it is one of these, because it only says where
  // sums are made. Every other key of the group does once it is set. If a spec has no such key, the
  // group is absent from the digest, as it always was.
  const auto* end = std::end(kSynchronous);
  if (std::find(std::begin(kSynchronous), end, spec.kvstore().type()) != end) {
    spec.mutable_kvstore()->clear_type();
  } else if (IsAsynchronous(spec)) {
    spec.mutable_kvstore()->set_type("dist_async");  // dist_device_async trains in the same way
  }
  spec.mutable_kvstore()->clear_update_on_kvstore();  // likewise: where updates are made
  if (spec.kvstore().ByteSizeLong() == 0) spec.clear_kvstore();
  spec.mutable_training()->clear_batch_size();  // global_batch says the same
  return numbers;
}

std::string TrainingDigest(const ResolvedSpec& resolved) {
  const ResolvedSpec numbers = NumbersOf(resolved);
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    numbers.SerializeToCodedStream(&coded);
  }
  return Digest(bytes);
}

// The path of a field that this version does not know, at or below a message. Empty if there is
// none.
std::string UnknownField(const google::protobuf::Message& message, const std::string& path) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const google::protobuf::UnknownFieldSet& unknown = reflection.GetUnknownFields(message);
  if (!unknown.empty()) return absl::StrCat(path, "field ", unknown.field(0).number());
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const std::string below = absl::StrCat(path, field->name(), ".");
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      std::string found =
          UnknownField(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                            : reflection.GetMessage(message, field),
                       below);
      if (!found.empty()) return found;
    }
  }
  return "";
}

// Fills in what follows from the spec, the data set and the sizes that are already set. Chunks that
// have a size keep it.
absl::Status Derive(ResolvedSpec& out) {
  const JobSpec& spec = out.spec();
  if (absl::Status status = CheckDataset(spec, out.dataset()); !status.ok()) return status;
  out.set_num_workers(spec.resources().num_workers());
  out.set_devices_per_worker(spec.resources().gpus_per_worker());
  out.set_lanes(AccumulateSteps(spec) * spec.resources().lanes());
  const bool shards = spec.kvstore().type() != "local" && spec.kvstore().type() != "device";
  out.set_num_shards(shards ? spec.resources().num_shards() : 0);
  out.set_global_batch(StepSamples(spec));

  absl::StatusOr<Graph> graph = MakeGraph(out);
  if (!graph.ok()) return graph.status();
  absl::StatusOr<FlatLayout> layout = FlatLayout::Create(TensorSpecs(*graph), out.chunk_floats());
  if (!layout.ok()) return layout.status();
  out.clear_parameters();
  for (const TensorSlot* slot : layout->forward_order()) {
    auto& parameter = *out.add_parameters();
    parameter.set_name(slot->spec.name);
    for (const int64_t dimension : slot->spec.shape) parameter.add_shape(dimension);
    parameter.set_is_stat(slot->spec.kind == TensorKind::kStat);
    const bool weight = slot->spec.init == TensorInit::kInitializer;
    parameter.set_fan_in(weight ? slot->spec.fan_in : 0);
    parameter.set_fan_out(weight ? slot->spec.fan_out : 0);
  }
  if (LocalSteps(spec) > 1 && layout->has_statistics()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'kvstore.local_steps' is ", LocalSteps(spec), ", and ", ModelTitle(spec.model()),
        " has running statistics: lanes cannot keep them by themselves yet"));
  }
  out.set_chunk_floats(static_cast<int32_t>(layout->chunk_floats()));
  out.set_chunk_count(layout->chunk_count());
  out.set_flat_floats(layout->total_floats());
  if (shards) {
    absl::StatusOr<Placement> placement =
        Placement::Create(layout->chunk_count(), out.num_shards());
    if (!placement.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'resources.num_shards' is ", out.num_shards(), ", but ",
                       ModelTitle(spec.model()), " has only ", layout->chunk_count(), " chunks"));
    }
    const std::string& optimizer = spec.training().optimizer().name();
    // At most one piece more than chunks for each tensor.
    const int64_t pieces = placement->Run(out.num_shards() - 1).chunk_count + out.parameters_size();
    if ((optimizer == "lars" || optimizer == "lamb") && pieces > kMaxPieces) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'training.optimizer.name' is '", optimizer, "', and a shard would have ", pieces,
          " pieces of tensors, ", kMaxPieces, " is the limit: give 'resources.num_shards' more"));
    }
    if ((optimizer == "lars" || optimizer == "lamb") && WorkersUpdate(spec) &&
        out.parameters_size() > kMaxRatiosOfAFrame) {
      return absl::InvalidArgumentError(
          absl::StrCat("'kvstore.update_on_kvstore' is false, and ", ModelTitle(spec.model()),
                       " has ", out.parameters_size(), " tensors: with '", optimizer, "', ",
                       kMaxRatiosOfAFrame, " is the limit"));
    }
  }

  absl::StatusOr<SamplePlan> plan = MakeSamplePlan(out);
  if (!plan.ok()) return plan.status();
  out.set_steps_per_epoch(plan->steps_per_epoch());
  int64_t total = kMaxSteps;
  // A valid spec has at most 10^6 epochs of kMaxDatasetSize = 2^32 steps, which is below 2^53.
  if (spec.training().has_epochs()) total = spec.training().epochs() * plan->steps_per_epoch();
  if (spec.training().has_max_steps()) {
    total = std::min<int64_t>(total, spec.training().max_steps());
  }
  out.set_total_steps(total);

  absl::StatusOr<EvalPlan> evaluation = EvalPlan::Create(out.dataset().test_samples(), out.lanes());
  if (!evaluation.ok()) return evaluation.status();
  out.set_evaluation_blocks(static_cast<int32_t>(evaluation->block_count()));
  out.set_evaluate_every_steps(spec.evaluation().every().epochs() * plan->steps_per_epoch());
  const job::v1::Period& save = spec.checkpoint().every();
  out.set_checkpoint_every_steps(save.has_epochs() ? save.epochs() * plan->steps_per_epoch()
                                                   : save.steps());

  if (const auto optimizer = MakeOptimizer(out); !optimizer.ok()) return optimizer.status();
  if (const auto rule = MakeLaneOptimizer(out); !rule.ok()) return rule.status();
  if (absl::Status status = CheckWarmup(out); !status.ok()) return status;
  if (absl::StatusOr<Schedule> schedule = MakeSchedule(out); !schedule.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'training.optimizer.lr_schedule': ", schedule.status().message()));
  }
  out.set_training_digest(TrainingDigest(out));
  return ValidateInitOptions(MakeInitOptions(out));
}

SchedulePeriod ToPeriod(const job::v1::Period& period) {
  if (period.has_epochs()) return {period.epochs(), SchedulePeriod::Unit::kEpochs};
  return {period.steps(), SchedulePeriod::Unit::kSteps};
}

}  // namespace

absl::StatusOr<ResolvedSpec> Resolve(const JobSpec& spec, const common::v1::DatasetInfo& dataset,
                                     const ResolveOptions& options) {
  if (absl::Status status = ValidateSpec(spec); !status.ok()) return status;
  ResolvedSpec out;
  out.set_job_id(options.job_id);
  *out.mutable_spec() = spec;
  FillDefaults(*out.mutable_spec());
  if (!out.spec().model().has_num_classes() && !out.spec().model().has_num_outputs()) {
    constexpr int32_t kFewestClasses = 2;
    out.mutable_spec()->mutable_model()->set_num_classes(
        std::max(kFewestClasses, dataset.num_classes()));
  }
  *out.mutable_dataset() = dataset;
  out.set_storage_path(absl::StrCat(options.storage_path, "/", options.job_id));
  out.set_chunk_floats(options.chunk_floats);
  if (absl::Status status = Derive(out); !status.ok()) return status;
  return out;
}

std::string Digest(absl::string_view resolved_bytes) {
  Sha256 hash;
  hash.Update(resolved_bytes);
  const std::array<uint8_t, 32> digest = hash.Finish();
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

absl::StatusOr<ResolvedSpec> ParseResolved(absl::string_view bytes, absl::string_view digest) {
  if (Digest(bytes) != digest)
    return absl::InvalidArgumentError(
        "the resolved spec does not have the digest that came with it");
  ResolvedSpec spec;
  if (!spec.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("the resolved spec is no ResolvedSpec message");
  }
  // Rules of names have changed since 0.1.0, and every service accepts the names that were valid
  // then.
  JobSpec rest = spec.spec();
  rest.set_name("job");
  if (absl::Status status = ValidateSpec(rest); !status.ok()) return status;
  if (const std::string unknown = UnknownField(NumbersOf(spec), ""); !unknown.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the resolved spec is of a newer version: ", unknown,
                     " is not known here; upgrade this service"));
  }
  ResolvedSpec again = spec;
  FillFirstDefaults(*again.mutable_spec());
  if (absl::Status status = Derive(again); !status.ok()) return status;
  // Do not compare bytes, because a map (labels) is serialized in any order.
  if (!google::protobuf::util::MessageDifferencer::Equals(again, spec)) {
    return absl::InvalidArgumentError(
        "the resolved spec's derived numbers differ from those that this version derives");
  }
  return spec;
}

absl::StatusOr<Graph> MakeGraph(const ResolvedSpec& spec) {
  absl::StatusOr<Shape> input = InputShape(spec.spec().data(), spec.dataset());
  if (!input.ok()) return input.status();
  return GraphOfModel(spec.spec().model(), *input);
}

absl::StatusOr<Graph> GraphOfModel(const job::v1::Model& model, const Shape& input) {
  const bool numbers = model.has_num_outputs();
  if (model.has_graph()) {
    absl::StatusOr<Graph> graph = GraphOf(model.graph(), input);
    const int32_t want = numbers ? model.num_outputs() : model.num_classes();
    if (graph.ok() && graph->num_classes() != want) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'model.graph' is refused: its loss reads ", graph->num_classes(), " numbers, '",
          numbers ? "model.num_outputs" : "model.num_classes", "' is ", want));
    }
    return graph;
  }
  if (numbers) return MakeRegressor(model.name(), model.num_outputs(), input, model.dropout());
  return MakeModel(model.name(), model.num_classes(), input, model.dropout());
}

absl::StatusOr<FlatLayout> MakeLayout(const ResolvedSpec& spec) {
  absl::StatusOr<Graph> graph = MakeGraph(spec);
  if (!graph.ok()) return graph.status();
  return FlatLayout::Create(TensorSpecs(*graph), spec.chunk_floats());
}

absl::StatusOr<Placement> MakePlacement(const ResolvedSpec& spec) {
  return Placement::Create(spec.chunk_count(), spec.num_shards());
}

absl::StatusOr<SamplePlan> MakeSamplePlan(const ResolvedSpec& spec) {
  SamplePlanOptions options;
  options.dataset_size = spec.dataset().train_samples();
  options.global_batch = spec.global_batch();
  options.lanes = spec.lanes();
  options.lane_weights = LaneWeights(spec.spec());
  options.partition =
      spec.spec().data().partition() == "contiguous" ? Partition::kContiguous : Partition::kGlobal;
  options.shuffle = spec.spec().data().shuffle();
  options.seed = spec.spec().training().seed();
  return SamplePlan::Create(std::move(options));
}

absl::StatusOr<EvalPlan> MakeEvalPlan(const ResolvedSpec& spec) {
  return EvalPlan::Create(spec.dataset().test_samples(), spec.lanes());
}

absl::StatusOr<Schedule> MakeSchedule(const ResolvedSpec& spec) {
  const auto& o = spec.spec().training().optimizer();
  ScheduleOptions options;
  options.learning_rate = o.learning_rate();
  const auto& s = o.lr_schedule();
  if (s.name() == "step") options.kind = ScheduleKind::kStep;
  if (s.name() == "multi_step") options.kind = ScheduleKind::kMultiStep;
  if (s.name() == "cosine") options.kind = ScheduleKind::kCosine;
  if (s.name() == "polynomial") options.kind = ScheduleKind::kPolynomial;
  if (s.name() == "one_cycle") options.kind = ScheduleKind::kOneCycle;
  if (s.has_every()) options.every = ToPeriod(s.every());
  if (s.has_factor()) options.factor = s.factor();
  if (s.has_warmup()) options.warmup = ToPeriod(s.warmup());
  options.min_learning_rate = s.min_rate();
  for (const job::v1::Period& milestone : s.milestones()) {
    options.milestones.push_back(ToPeriod(milestone));
  }
  if (s.has_power()) options.power = s.power();
  if (s.has_pct_start()) options.pct_start = s.pct_start();
  if (s.has_div_factor()) options.div_factor = s.div_factor();
  if (s.has_final_div_factor()) options.final_div_factor = s.final_div_factor();
  return Schedule::Create(options, spec.steps_per_epoch(), spec.total_steps());
}

InitOptions MakeInitOptions(const ResolvedSpec& spec) {
  const auto& i = spec.spec().model().initializer();
  InitOptions options;
  options.initializer = i.name() == "he"        ? Initializer::kHe
                        : i.name() == "normal"  ? Initializer::kNormal
                        : i.name() == "uniform" ? Initializer::kUniform
                        : i.name() == "zeros"   ? Initializer::kZeros
                                                : Initializer::kXavier;
  if (i.has_scale()) options.scale = i.scale();
  return options;
}

double ClipNorm(const ResolvedSpec& spec) {
  return LocalSteps(spec.spec()) > 1 ? 0 : spec.spec().training().gradient_clip_norm();
}

double LaneClipNorm(const ResolvedSpec& spec) {
  return LocalSteps(spec.spec()) > 1 || IsAsynchronous(spec.spec())
             ? spec.spec().training().gradient_clip_norm()
             : 0;
}

int64_t MaxStaleness(const ResolvedSpec& spec) {
  const job::v1::KvStore& kvstore = spec.spec().kvstore();
  return kvstore.has_max_staleness() ? kvstore.max_staleness() : kUnboundedStaleness;
}

GradientFormat GradientFormatOf(const ResolvedSpec& spec) {
  const job::v1::GradientCompression& c = spec.spec().kvstore().gradient_compression();
  GradientFormat format;
  format.encoding = c.type() == "fp16"    ? GradientEncoding::kFloat16
                    : c.type() == "bf16"  ? GradientEncoding::kBFloat16
                    : c.type() == "int8"  ? GradientEncoding::kInt8
                    : c.type() == "2bit"  ? GradientEncoding::kTwoBit
                    : c.type() == "1bit"  ? GradientEncoding::kOneBit
                    : c.type() == "top_k" ? GradientEncoding::kTopK
                                          : GradientEncoding::kNone;
  if (c.has_threshold()) format.threshold = c.threshold();
  if (c.has_ratio()) format.ratio = c.ratio();
  return format;
}

bool DynamicLossScale(const ResolvedSpec& spec) {
  return spec.spec().training().precision() == "fp16";
}

absl::Duration CheckpointEvery(const ResolvedSpec& spec) {
  const auto& checkpoint = spec.spec().checkpoint();
  return checkpoint.every_seconds() > 0 ? absl::Seconds(checkpoint.every_seconds())
                                        : absl::InfiniteDuration();
}

bool UsesShards(const ResolvedSpec& spec) { return spec.num_shards() > 0; }

}  // namespace capstan::training::spec
