// A resolved spec as the objects that a task works with.
#ifndef CAPSTAN_GPU_WORKER_TASK_JOB_H_
#define CAPSTAN_GPU_WORKER_TASK_JOB_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "gpu_worker/data/dataset.h"
#include "gpu_worker/engine/device/device.h"
#include "training/chunks/flat_layout.h"
#include "training/graph/graph.h"
#include "training/lanes/eval_plan.h"
#include "training/lanes/sample_plan.h"
#include "training/optim/optimizer.h"
#include "training/optim/sgd.h"
#include "training/schedule/schedule.h"

namespace capstan::gpu_worker {

// Immutable; shared by the threads of a task.
struct Job {
  job::v1::ResolvedSpec spec;
  std::string digest;  // 32 bytes
  training::Graph graph;
  training::FlatLayout layout;
  training::SamplePlan samples;
  training::EvalPlan evaluation;
  training::Schedule schedule;
  std::shared_ptr<const training::Optimizer> optimizer;  // the last copy of the job lets go
  // The rule as devices carry it out that keep the weights; not set: they cannot, and the host does.
  std::optional<training::SgdOptions> device_rule;

  const std::string& id() const { return spec.job_id(); }
  bool uses_shards() const { return spec.num_shards() > 0; }
  engine::Precision precision() const;
  // Samples of the largest lane or evaluation block: what a plan is compiled for. All lanes count,
  // since a task may take over any of them.
  int64_t MaxBatch() const;
  // Of the largest lane.
  int64_t MaxLane() const;
  // How many of the `lanes` of a CPU device it computes in one pass: a power of two. 1 where an operator couples
  // samples; no more than 256 samples, for lanes of as many cost nothing one by one, and memory.
  int64_t LanesAtOnce(int64_t lanes) const;
  // A batch of `step` without samples: what all of its lanes have alike.
  engine::SampleBatch BatchOf(int64_t step) const;
};

// InvalidArgument: bytes that are no resolved spec of this digest.
absl::StatusOr<std::shared_ptr<const Job>> MakeJob(absl::string_view resolved_spec,
                                                   absl::string_view digest);

// Where and what the samples are, as gpu_worker/data takes it. `roots`: see DatasetOptions.
data::DatasetOptions MakeDatasetOptions(const job::v1::JobSpec& spec,
                                        std::vector<std::string> roots);

// The failure reason of docs/interface.md that a status stands for: the one that it carries
// (gpu_worker/data), else GpuOutOfMemory or HostOutOfMemory for ResourceExhausted, HostOutOfMemory
// for Aborted and NcclTimeout for DeadlineExceeded of a GPU, CheckpointCorrupt for DataLoss, else
// InternalError.
std::string FailureReasonOf(const absl::Status& status, bool on_gpu = false);

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_JOB_H_
