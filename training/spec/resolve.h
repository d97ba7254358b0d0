// Admission: a job file and a data set become a resolved spec, and a resolved spec becomes the
// objects that services work with.
#ifndef CAPSTAN_TRAINING_SPEC_RESOLVE_H_
#define CAPSTAN_TRAINING_SPEC_RESOLVE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "training/chunks/flat_layout.h"
#include "training/chunks/placement.h"
#include "training/graph/graph.h"
#include "training/init/init.h"
#include "training/lanes/eval_plan.h"
#include "training/lanes/sample_plan.h"
#include "training/optim/optimizer.h"
#include "training/optim/sgd.h"
#include "training/schedule/schedule.h"

namespace capstan::training::spec {

struct ResolveOptions {
  std::string job_id;
  std::string
      storage_path;  // absolute folder under which the job's own folder <job_id> comes to lie
  int32_t chunk_floats = 0;  // 0: as the model wants; see FlatLayout::Create
};

// InvalidArgument: the spec is invalid, or does not fit the data set (counts, classes, a batch
// larger than the set, an input shape that the model cannot take, more shards than chunks), with
// the sentences joined by "; ".
absl::StatusOr<job::v1::ResolvedSpec> Resolve(const job::v1::JobSpec& spec,
                                              const common::v1::DatasetInfo& dataset,
                                              const ResolveOptions& options);

// The SHA-256 (32 bytes) of a resolved spec's serialized bytes.
std::string Digest(absl::string_view resolved_bytes);

// A received resolved spec, of this version or an earlier one: parsed, its digest checked and its derived numbers compared
// with what Resolve makes of the rest. Its chunks keep their size, and defaults that came later stay unset.
// InvalidArgument: they differ, or what decides the numbers has a field that this version does not know.
absl::StatusOr<job::v1::ResolvedSpec> ParseResolved(absl::string_view bytes,
                                                    absl::string_view digest);

// Views of a resolved spec. Errors are impossible for one that came out of Resolve or
// ParseResolved, but are still returned.
absl::StatusOr<Graph> MakeGraph(const job::v1::ResolvedSpec& spec);
absl::StatusOr<FlatLayout> MakeLayout(const job::v1::ResolvedSpec& spec);
absl::StatusOr<Placement> MakePlacement(
    const job::v1::ResolvedSpec& spec);  // InvalidArgument for local and device
absl::StatusOr<SamplePlan> MakeSamplePlan(const job::v1::ResolvedSpec& spec);
absl::StatusOr<EvalPlan> MakeEvalPlan(const job::v1::ResolvedSpec& spec);
absl::StatusOr<std::shared_ptr<const Optimizer>> MakeOptimizer(const job::v1::ResolvedSpec& spec);
// The optimizer as devices carry it out that keep the weights: `sgd` that decays all tensors, on
// gradients that are not clipped. Not set: the host updates.
std::optional<SgdOptions> DeviceRule(const job::v1::ResolvedSpec& spec);
absl::StatusOr<Schedule> MakeSchedule(const job::v1::ResolvedSpec& spec);
InitOptions MakeInitOptions(const job::v1::ResolvedSpec& spec);
// fp16: the lead scales the loss (training/lead/loss_scale.h).
bool DynamicLossScale(const job::v1::ResolvedSpec& spec);

// Time between two checkpoints; InfiniteDuration where they are not by time.
absl::Duration CheckpointEvery(const job::v1::ResolvedSpec& spec);
bool UsesShards(const job::v1::ResolvedSpec& spec);  // false for local and device

// Bytes that the files of a job take up, at most: what the plan prints, and what must fit onto the disk
// of its storage_path.
struct StorageNeed {
  int64_t checkpoint_bytes = 0;  // of one version, from all shards
  int64_t checkpoints = 0;       // that lie there at a time: those kept and the one being written
  int64_t weights_bytes = 0;     // weights.safetensors, of the last version alone
  int64_t log_bytes = 0;         // metrics.jsonl

  // Without these the job cannot end well.
  int64_t LastVersion() const { return checkpoint_bytes + weights_bytes + log_bytes; }
  int64_t Most() const;  // INT64_MAX: at least so many
};
StorageNeed StorageNeedOf(const job::v1::ResolvedSpec& spec);

// "470.4 KiB".
std::string BytesText(int64_t bytes);

// What `validate`, `submit` and `run` print before anything starts: what the file implies, and
// warnings.
std::string PlanText(const job::v1::ResolvedSpec& spec);

}  // namespace capstan::training::spec

#endif  // CAPSTAN_TRAINING_SPEC_RESOLVE_H_
