// What a worker does with a lane's gradient before it is sent (asynchronous jobs) or applied (steps
// that a lane makes by itself). Only the worker sees all of it.
//
// Threads: a pure function of its arguments.
#ifndef CAPSTAN_GPU_WORKER_TASK_LANE_CLIP_H_
#define CAPSTAN_GPU_WORKER_TASK_LANE_CLIP_H_

#include "absl/types/span.h"
#include "training/chunks/flat_layout.h"

namespace capstan::gpu_worker {

// False: the gradient has an infinity or a NaN, and is unchanged. If `clip_norm` is above 0, the
// numbers of the weights are multiplied by clip_norm / norm where their Euclidean norm is above it,
// with the bits of a synchronous job of one lane. Running statistics stay as they are.
// gradient.size() == layout.total_floats().
bool ClipLane(const training::FlatLayout& layout, double clip_norm, absl::Span<float> gradient);

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_LANE_CLIP_H_
