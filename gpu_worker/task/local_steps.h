// What a lane does between two exchanges in a job with kvstore.local_steps: steps of its own, each on
// the next part of the lane's samples, from the weights of the version on. The state of the
// optimizer begins anew in each round, so what a lane sends is a function of (weights, lane, round)
// alone, whoever computes it.
//
// Threads: none of its own; call it where the plan may be called.
#ifndef CAPSTAN_GPU_WORKER_TASK_LOCAL_STEPS_H_
#define CAPSTAN_GPU_WORKER_TASK_LOCAL_STEPS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "exchange/float_buffer.h"
#include "gpu_worker/engine/device/device.h"
#include "gpu_worker/task/job.h"

namespace capstan::gpu_worker {

class LocalSteps {
 public:
  // The plan must outlive it. `stopping` is asked before each step.
  LocalSteps(std::shared_ptr<const Job> job, engine::Plan& plan, std::function<bool()> stopping);

  // Trains `lane` of the round `step`, from `weights` on. Writes
  //
  //   (weights - the lane's weights at the end) x samples of the lane / samples of the round
  //
  // which the shards' rule subtracts (training/optim/average.h). After a gradient that is not finite,
  // all of it is NaN, and the shards skip the round. The result is of all steps together. The plan
  // has other weights afterwards. Errors are those of ComputeLane, and Cancelled when `stopping`.
  absl::StatusOr<engine::LaneResult> Train(int64_t step, int32_t lane,
                                           const engine::SampleBatch& samples,
                                           absl::Span<const float> weights, absl::Span<float> out);

 private:
  const std::shared_ptr<const Job> job_;
  engine::Plan& plan_;
  const std::function<bool()> stopping_;
  exchange::FloatBuffer weights_;
  exchange::FloatBuffer gradient_;
  exchange::FloatBuffer state_;
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_LOCAL_STEPS_H_
