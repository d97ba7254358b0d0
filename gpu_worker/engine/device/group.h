// PlanGroup: the plans of several devices that compute the lanes of a step together and sum their
// gradients on the devices, before anything reaches the host.
//
// Made by Device::MakeGroup. With options.deterministic the sums are those of the lane tree (rule
// R1), the same bits as the host's fold of the same lanes. The sum of a node comes bucket by bucket
// while backward still runs.
//
// Or the sum of a whole step stays on the devices, and they update their weights by themselves:
// LoadState, then ComputeKept and Update in turn, ReadState where the host wants to see it.
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
#include "gpu_worker/engine/collective/collective.h"
#include "gpu_worker/engine/device/device.h"
#include "training/lanes/lane_tree.h"
#include "training/optim/sgd.h"

namespace capstan::engine {

struct GroupOptions {
  bool deterministic = true;
  // A wait without any progress ends after it, with DeadlineExceeded.
  absl::Duration timeout = absl::Seconds(60);
  BucketOptions buckets;
  // What is taken on the devices at once: FoldPlan::slots of a usual step, and momentum for LoadState.
  // A step that needs more takes it then.
  int slots = 0;
  bool momentum = false;
};

struct GroupLane {
  int plan = 0;  // of the group
  int32_t lane = 0;
  SampleBatch batch;
};

// The lanes of a step whose sum stayed on the devices.
struct KeptLanes {
  std::vector<LaneResult> lanes;
  bool finite = true;  // no infinity and no NaN in the sum
};

// A step of the optimizer, training/optim/sgd.h.
struct SgdStep {
  training::SgdOptions rule;
  double learning_rate = 0;
  double gradient_scale = 1;  // factor on the sum, rounded to float as the product is
};

class PlanGroup {
 public:
  virtual ~PlanGroup() = default;
  PlanGroup(const PlanGroup&) = delete;
  PlanGroup& operator=(const PlanGroup&) = delete;

  // As Plan::LoadWeights, for every plan.
  virtual absl::Status LoadWeights(const float* weights) = 0;

  // [0, ready_floats) of the sum of a node is final in its vector. Rising, the last is the whole.
  using OnReady = std::function<void(size_t node, int64_t ready_floats)>;
  // Computes `lanes` (those of a plan in the order given) and writes the sums of the largest nodes
  // that they make, LaneTree::LargestNodes: sums[i], total_floats() long, is the i-th. Returns the
  // results of the lanes. `on_ready` comes from the calling thread.
  // Errors as Plan::ComputeLane. DeadlineExceeded: a device, or the sum between devices, hangs; the
  // message names GPU and bucket. After Internal and DeadlineExceeded group and plans are of no
  // further use, and the process is better ended.
  virtual absl::StatusOr<std::vector<LaneResult>> ComputeLanes(const training::LaneTree& tree,
                                                               const std::vector<GroupLane>& lanes,
                                                               double loss_scale,
                                                               const std::vector<float*>& sums,
                                                               const OnReady& on_ready) = 0;

  // As LoadWeights, for steps of Update: `momentum`, total_floats() long, may be null where the rule
  // has none.
  virtual absl::Status LoadState(const float* weights, const float* momentum) = 0;
  // As ComputeLanes, of lanes that make one node; InvalidArgument where they do not.
  virtual absl::StatusOr<KeptLanes> ComputeKept(const training::LaneTree& tree,
                                                const std::vector<GroupLane>& lanes,
                                                double loss_scale) = 0;
  // The weights and momentum of all plans after a step with the sum of the last ComputeKept, which
  // is used up: the bits of training::Sgd. Returns before the devices are done; later calls on the
  // group wait for it, and the plans are used by themselves again after ComputeLanes, ComputeKept or
  // ReadState. FailedPrecondition: no sum, or no momentum, is there; nothing has changed.
  virtual absl::Status Update(const SgdStep& step) = 0;
  // Writes both vectors, total_floats() long; `momentum` may be null. FailedPrecondition: it is not,
  // and none was loaded.
  virtual absl::Status ReadState(float* weights, float* momentum) = 0;

  // What the group has on the device of plan `plan`, beside PlanInfo::planned_bytes().
  virtual int64_t DeviceBytes(int plan) const = 0;

  // For logs: "2 GPUs, sums by NCCL 2.28.9".
  virtual const std::string& summary() const = 0;

 protected:
  PlanGroup() = default;
};

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_DEVICE_GROUP_H_
