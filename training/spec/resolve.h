// Admission: turns a job file and a data set into a resolved spec, and a resolved spec into the
// objects that services work with.
#ifndef CAPSTAN_TRAINING_SPEC_RESOLVE_H_
#define CAPSTAN_TRAINING_SPEC_RESOLVE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "training/chunks/flat_layout.h"
#include "training/chunks/placement.h"
#include "training/compress/gradient_format.h"
#include "training/graph/graph.h"
#include "training/init/init.h"
#include "training/lanes/eval_plan.h"
#include "training/lanes/sample_plan.h"
#include "training/optim/optimizer.h"
#include "training/schedule/schedule.h"

namespace capstan::training::spec {

struct ResolveOptions {
  std::string job_id;
  std::string storage_path;  // absolute folder in which the job's own folder <job_id> is created
  int32_t chunk_floats = 0;  // 0: chosen for the model; see FlatLayout::Create
};

// InvalidArgument: the spec is invalid, or does not fit the data set (counts, classes, a batch
// larger than the set, an input shape that the model cannot take, more shards than chunks). The
// message is all sentences joined by "; ".
absl::StatusOr<job::v1::ResolvedSpec> Resolve(const job::v1::JobSpec& spec,
                                              const common::v1::DatasetInfo& dataset,
                                              const ResolveOptions& options);

// The SHA-256 (32 bytes) of a resolved spec's serialized bytes.
std::string Digest(absl::string_view resolved_bytes);

// Parses a received resolved spec, of this version or an earlier one. Checks its digest and
// compares its derived numbers with those that Resolve derives from the rest. Its chunks keep their
// size, and later defaults stay unset. InvalidArgument: something differs, or a part that decides
// the numbers has a field that this version does not know.
absl::StatusOr<job::v1::ResolvedSpec> ParseResolved(absl::string_view bytes,
                                                    absl::string_view digest);

// Views of a resolved spec. They cannot fail for one that came from Resolve or ParseResolved, but
// return errors anyway.
absl::StatusOr<Graph> MakeGraph(const job::v1::ResolvedSpec& spec);
// The network of a job file for inputs of this shape. InvalidArgument: the shape does not fit, or
// the loss does not read as many numbers as model.num_classes says, or model.num_outputs if that is
// set, as in a job whose targets are numbers. NotFound: there is no such model.
absl::StatusOr<Graph> GraphOfModel(const job::v1::Model& model, const Shape& input);
absl::StatusOr<FlatLayout> MakeLayout(const job::v1::ResolvedSpec& spec);
absl::StatusOr<Placement> MakePlacement(
    const job::v1::ResolvedSpec& spec);  // InvalidArgument for local and device
absl::StatusOr<SamplePlan> MakeSamplePlan(const job::v1::ResolvedSpec& spec);
absl::StatusOr<EvalPlan> MakeEvalPlan(const job::v1::ResolvedSpec& spec);
absl::StatusOr<std::shared_ptr<const Optimizer>> MakeOptimizer(const job::v1::ResolvedSpec& spec);
// What a lane does in its own steps (kvstore.local_steps): the rule of the job file, while shards
// only average (optim/average.h). Null: lanes make no steps of their own.
absl::StatusOr<std::shared_ptr<const Optimizer>> MakeLaneOptimizer(
    const job::v1::ResolvedSpec& spec);
// Why devices that keep the weights cannot update them, for people: "for lamb". Empty: they can.
// Optimizer::Numbers decides, so a rule without a form for devices updates on the host.
std::string WhyTheHostUpdates(const job::v1::ResolvedSpec& spec);
// The same with the optimizer of the job, by MakeOptimizer.
std::string WhyTheHostUpdates(const job::v1::ResolvedSpec& spec, const Optimizer& optimizer);
absl::StatusOr<Schedule> MakeSchedule(const job::v1::ResolvedSpec& spec);
InitOptions MakeInitOptions(const job::v1::ResolvedSpec& spec);
// True for fp16, where the lead scales the loss (training/lead/loss_scale.h).
bool DynamicLossScale(const job::v1::ResolvedSpec& spec);
// Of an asynchronous job: steps that a lane may be ahead of the slowest one.
inline constexpr int64_t kUnboundedStaleness = -1;  // any number
int64_t MaxStaleness(const job::v1::ResolvedSpec& spec);
// Of what leaves a worker.
GradientFormat GradientFormatOf(const job::v1::ResolvedSpec& spec);
// For LeadOptions::clip_norm; 0: the job does not clip by norm.
double ClipNorm(const job::v1::ResolvedSpec& spec);
// By which workers clip the gradient of a lane: in asynchronous jobs, and where lanes make steps of
// their own. 0: they do not.
double LaneClipNorm(const job::v1::ResolvedSpec& spec);

// Time between two checkpoints; InfiniteDuration if none are made by time.
absl::Duration CheckpointEvery(const job::v1::ResolvedSpec& spec);
bool UsesShards(const job::v1::ResolvedSpec& spec);  // false for local and device

// The most bytes that the files of a job take up. The plan prints them, and they must fit onto the
// disk of the job's storage_path.
struct StorageNeed {
  int64_t checkpoint_bytes = 0;  // of one version, over all shards
  int64_t checkpoints = 0;       // on the disk at a time: those kept and the one being written
  int64_t weights_bytes = 0;     // weights.safetensors, of the last version only
  int64_t log_bytes = 0;         // metrics.jsonl

  // The job cannot complete without room for these.
  int64_t LastVersion() const { return checkpoint_bytes + weights_bytes + log_bytes; }
  int64_t Most() const;  // INT64_MAX: at least that many
};
StorageNeed StorageNeedOf(const job::v1::ResolvedSpec& spec);

// "470.4 KiB".
std::string BytesText(int64_t bytes);

// The text that `validate`, `submit` and `run` print before anything starts: consequences of the
// file, and warnings.
std::string PlanText(const job::v1::ResolvedSpec& spec);

}  // namespace capstan::training::spec

#endif  // CAPSTAN_TRAINING_SPEC_RESOLVE_H_
