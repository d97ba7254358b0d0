// PlanGroup: the plans of several devices that compute the lanes of a step together and sum their
// gradients on the devices, before anything is copied to the host.
//
// Made by Device::MakeGroup. With options.deterministic the sums are those of the lane tree (rule
// R1), with the same bits as the host's fold of the same lanes. The sum of a lane block arrives bucket by
// bucket while backward still runs.
//
// Alternatively the sum of a whole step stays on the devices, and they update their weights
// themselves: LoadState, then ComputeKept and Update in turn, and ReadState when the host needs the
// weights.
//
// Threads: calls must not overlap, neither with each other nor with calls on the plans.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_DEVICE_GROUP_H_
#define CAPSTAN_GPU_WORKER_ENGINE_DEVICE_GROUP_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gpu_worker/engine/collective/collective.h"
#include "gpu_worker/engine/device/device.h"
#include "training/lanes/lane_tree.h"
#include "training/optim/apply.h"

namespace capstan::engine {

struct GroupOptions {
  bool deterministic = true;
  // A wait without any progress ends after this time with DeadlineExceeded.
  absl::Duration timeout = absl::Seconds(60);
  BucketOptions buckets;
  // FoldPlan::slots of a usual step, which are allocated on the devices at once. A step that needs
  // more allocates it then.
  int slots = 0;
  // Optimizer::state_floats_per_weight() for LoadState. Allocated at once, too.
  int state_floats = 0;
};

struct GroupLane {
  int plan = 0;  // index in the group
  int32_t lane = 0;
  SampleBatch batch;
};

// The lanes of a step whose sum stayed on the devices.
struct KeptLanes {
  std::vector<LaneResult> lanes;
  bool finite = true;  // the sum contains no infinity and no NaN
};

class PlanGroup {
 public:
  virtual ~PlanGroup() = default;
  PlanGroup(const PlanGroup&) = delete;
  PlanGroup& operator=(const PlanGroup&) = delete;

  // As Plan::LoadWeights, for every plan.
  virtual absl::Status LoadWeights(const float* weights) = 0;

  // [0, ready_floats) of the sum of a block is final in its vector. The values rise; the last one is
  // the whole vector.
  using OnReady = std::function<void(size_t block, int64_t ready_floats)>;
  // Computes `lanes` (those of one plan in the given order) and writes the sums of the largest
  // blocks that they make, LaneTree::LargestBlocks: sums[i], total_floats() long, is the i-th.
  // Returns the results of the lanes. Calls `on_ready` in the calling thread. Errors as
  // Plan::ComputeLane. DeadlineExceeded: a device, or the sum between devices, hangs; the message
  // names GPU and bucket. After Internal and DeadlineExceeded group and plans cannot be used any
  // more, and the process should end.
  virtual absl::StatusOr<std::vector<LaneResult>> ComputeLanes(const training::LaneTree& tree,
                                                               const std::vector<GroupLane>& lanes,
                                                               double loss_scale,
                                                               const std::vector<float*>& sums,
                                                               const OnReady& on_ready) = 0;

  // As LoadWeights, for steps of Update. `state` of the optimizer, GroupOptions::state_floats *
  // total_floats() long, may be null if the rule has none. InvalidArgument: it is not null, but
  // state_floats is 0.
  virtual absl::Status LoadState(const float* weights, const float* state) = 0;
  // As ComputeLanes, for lanes that make one block; InvalidArgument if they do not.
  virtual absl::StatusOr<KeptLanes> ComputeKept(const training::LaneTree& tree,
                                                const std::vector<GroupLane>& lanes,
                                                double loss_scale) = 0;
  // Updates the weights and state of all plans with the sum of the last ComputeKept, which is then
  // gone. `parts` are those of training::UpdateParts, and the bits those of training::ApplyVersion.
  // Returns before the devices are done; later calls on the group wait for it. The plans may be used
  // by themselves again after ComputeLanes, ComputeKept or ReadState. FailedPrecondition: there is
  // no sum, or not the state that the rule needs. InvalidArgument: the parts are not the whole
  // vector. Nothing has changed then.
  virtual absl::Status Update(absl::Span<const training::UpdatePart> parts) = 0;
  // Writes both vectors, as long as for LoadState. `state` may be null. FailedPrecondition: it is not
  // null, but no state was loaded.
  virtual absl::Status ReadState(float* weights, float* state) = 0;

  // Bytes of the group on the device of plan `plan`, in addition to PlanInfo::planned_bytes().
  virtual int64_t DeviceBytes(int plan) const = 0;

  // For logs: "2 GPUs, sums by NCCL 2.28.9".
  virtual const std::string& summary() const = 0;

 protected:
  PlanGroup() = default;
};

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_DEVICE_GROUP_H_
