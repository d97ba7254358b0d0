// The objects that a task makes from a resolved spec.
#ifndef CAPSTAN_GPU_WORKER_TASK_JOB_H_
#define CAPSTAN_GPU_WORKER_TASK_JOB_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "gpu_worker/data/dataset.h"
#include "gpu_worker/engine/device/device.h"
#include "training/chunks/flat_layout.h"
#include "training/compress/gradient_format.h"
#include "training/graph/graph.h"
#include "training/lanes/eval_plan.h"
#include "training/lanes/sample_plan.h"
#include "training/optim/optimizer.h"
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
  std::shared_ptr<const training::Optimizer> optimizer;  // freed with the last copy of the job
  bool devices_update = false;  // devices that keep the weights can; else the host does
  training::GradientFormat gradient_format;  // of what leaves a worker
  // In a job whose lanes make steps of their own, the rule of these steps. Null: no such job.
  std::shared_ptr<const training::Optimizer> lane_optimizer;
  double lane_clip_norm = 0;  // by which the worker clips a lane's gradient; 0: it does not

  const std::string& id() const { return spec.job_id(); }
  bool uses_shards() const { return spec.num_shards() > 0; }
  bool asynchronous() const;
  bool compresses() const { return gradient_format.encoding != training::GradientEncoding::kNone; }
  // Checkpoints have what error feedback has left out.
  bool keeps_residuals() const;
  // Each lane's gradient leaves by itself, never in a sum with others.
  bool lanes_apart() const { return asynchronous() || compresses(); }
  engine::Precision precision() const;
  // Samples of the largest part of a lane, or evaluation block, for which a plan is compiled. All lanes count,
  // because a task may take over any of them.
  int64_t MaxBatch() const;
  bool has_local_steps() const { return lane_optimizer != nullptr; }
  // The most samples of a lane that are computed at a time: all, or those of one of its own steps.
  int64_t MaxPart(int32_t lane) const;
  // Steps that a lane makes by itself with so many samples: local_steps, or as many as it has samples,
  // in a full round. In a smaller one, the fewest with parts of at most MaxPart.
  int64_t OwnSteps(int32_t lane, int64_t samples) const;
  int64_t MaxLane() const;  // the largest MaxPart
  // How many of the `lanes` of a CPU device are computed in one pass: a power of two. It is 1 if an
  // operator couples samples, and if lanes make steps of their own. A pass has at most 256 samples, because lanes of that size lose
  // nothing by being computed one by one, and larger passes need more memory.
  int64_t LanesAtOnce(int64_t lanes) const;
  // The samples by which a gradient is divided: those of the whole step (rule R2), or of the lane in an
  // asynchronous job (rule A1).
  int64_t GradientSamples(int64_t step, int32_t lane) const;
  // A batch of `step` without samples, with the fields that all its lanes share.
  engine::SampleBatch BatchOf(int64_t step) const;
};

// InvalidArgument: the bytes are not a resolved spec with this digest.
absl::StatusOr<std::shared_ptr<const Job>> MakeJob(absl::string_view resolved_spec,
                                                   absl::string_view digest);

// The failure reason of docs/interface.md for a status. It is the reason that the status carries
// (gpu_worker/data). Otherwise: GpuOutOfMemory or HostOutOfMemory for ResourceExhausted,
// HostOutOfMemory for Aborted and NcclTimeout for DeadlineExceeded of a GPU, CheckpointCorrupt for
// DataLoss, else InternalError.
std::string FailureReasonOf(const absl::Status& status, bool on_gpu = false);

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_JOB_H_
