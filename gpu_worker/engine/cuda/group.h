// Several devices that compute a step together: which work goes to which stream, what waits for
// what, in which order buckets reach the host. Plain host code over GroupStreams; the CUDA plug-in
// has streams of a card, the fake one threads.
//
// Every device has two streams, which may be one: kCompute runs its lanes, kFold sums its slice of
// each bucket and moves it. kFold works on a bucket as soon as backward has left it on every
// device; the next lane of a device waits until all others have read its gradient. All is enqueued by the calling thread,
// which then waits for the buckets in their order.
//
// A sum may stay on the devices: each then updates its slices of the weights, with its slices of the
// momentum, and takes the others' from its neighbours. Nothing of the size of the model meets the
// host.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_GROUP_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/engine/cuda/program.h"
#include "gpu_worker/engine/plugin/abi.h"

namespace capstan::engine::cuda {

enum class StreamKind { kCompute, kFold };

// A device's part of a bucket, in floats of the flat vector.
struct Slice {
  int64_t offset = 0;
  int64_t size = 0;
  int64_t local = 0;  // where it lies in the device's slots, which have its slices alone
  int bucket = 0;
};

struct GroupMemory {
  int slots = 0;          // sums, on each device its slices of them
  int nodes = 0;          // whole vectors in host memory
  bool momentum = false;  // on each device its slices of it
};

// What a lane calls while it is enqueued, in this order.
struct LaneHooks {
  // In front of the work, once the batch is on its way: what it makes the stream wait for holds up
  // neither that copy nor the host.
  std::function<absl::Status()> before_compute;
  // In rising order, when the work that makes a bucket final has been enqueued.
  std::function<absl::Status(int bucket)> on_bucket;
};

// Streams, events and memory of all devices of a group. Calls come from one thread and return
// before the work is done, but for Done, Sums and the copies of host memory that they read.
class GroupStreams {
 public:
  virtual ~GroupStreams() = default;

  virtual int devices() const = 0;
  virtual std::string NameOf(int device) const = 0;  // "GPU 1", for messages
  virtual bool reduces() const = 0;

  // slot_floats: floats of a slot, and of the momentum, on each device. At least as much as before;
  // what is under way goes on with what it has.
  virtual absl::Status Reserve(const std::vector<int64_t>& slot_floats,
                               const GroupMemory& memory) = 0;
  // What Reserve has taken on the device.
  virtual int64_t DeviceBytes(int device) const = 0;
  virtual float* node(int index) = 0;
  virtual float* host_weights() = 0;

  // Events are numbered from 0; the last Record of an event counts.
  virtual void MakeEvents(int count) = 0;
  virtual absl::Status Record(int event, int device, StreamKind stream) = 0;
  virtual absl::Status Wait(int event, int device, StreamKind stream) = 0;
  // Whether the event has come to pass; true where it was never recorded. An error: a device failed.
  virtual absl::StatusOr<bool> Done(int event) = 0;

  // kCompute: forward, loss, backward. The batch is read before the return. Nothing ahead of
  // before_compute writes the gradient.
  virtual absl::Status EnqueueLane(int device, const capstan_batch& batch, double loss_scale,
                                   const LaneHooks& hooks) = 0;
  // Of the last lane of the device, which is done.
  virtual capstan_result Sums(int device) const = 0;

  // kFold of `device`.
  virtual absl::Status Take(int device, int from, const Slice& slice, int slot) = 0;
  virtual absl::Status AddLane(int device, int from, const Slice& slice, int slot) = 0;
  virtual absl::Status AddSlot(int device, const Slice& slice, int slot, int from) = 0;
  virtual absl::Status Emit(int device, const Slice& slice, int slot, int node) = 0;
  // Whether the slot is finite everywhere, for TakeFinite.
  virtual absl::Status CheckFinite(int device, const Slice& slice, int slot) = 0;
  // Whether all that the device checked since the last call was finite; the checks are done.
  virtual bool TakeFinite(int device) = 0;
  // kFold of all devices: slot of each = (or +=) its slice of the sum over the devices.
  virtual absl::Status Reduce(const std::vector<Slice>& slices, int slot, bool add) = 0;

  // kFold of `device`: a part of the weights from host_weights(), from a neighbour, to
  // host_weights(); of the momentum from and to node(0).
  virtual absl::Status PushWeights(int device, const Slice& slice) = 0;
  virtual absl::Status PullWeights(int device, int from, const Slice& slice) = 0;
  virtual absl::Status EmitWeights(int device, const Slice& slice) = 0;
  virtual absl::Status PushMomentum(int device, const Slice& slice) = 0;
  virtual absl::Status EmitMomentum(int device, const Slice& slice) = 0;
  // Weights and momentum of the slice after a step with the sum in the slot.
  virtual absl::Status Update(int device, const Slice& slice, int slot, const capstan_sgd& sgd) = 0;
  // kCompute: the weights are there.
  virtual absl::Status UseWeights(int device) = 0;

  // What the library between the devices says of itself.
  virtual absl::Status CommunicatorStatus() = 0;
  // Nothing is waited for any more: what hangs is left behind.
  virtual void Abandon() = 0;
};

class Group {
 public:
  // `streams` of request.plan_count devices.
  Group(std::unique_ptr<GroupStreams> streams, const capstan_group_request& request);

  bool reduces() const { return streams_->reduces(); }
  // A device failed, or a wait ended: the streams were abandoned.
  bool broken() const { return !broken_.ok(); }
  // Takes what the request says; first of all. Where it fails the plans are as they were.
  absl::Status Reserve() { return TakeMemory(); }
  // By device, what the group has on them beside the plans. Steady until Compute or LoadWeights needs
  // more than was reserved.
  const std::vector<int64_t>& device_bytes() const { return device_bytes_; }
  // As the ABI's group_load_weights, group_compute, group_update and group_read_weights. After an
  // error of a device, or a wait that ended, the group answers it for ever.
  absl::Status LoadWeights(const float* weights, const float* momentum);
  absl::Status Compute(const capstan_group_step& step);
  absl::Status Update(const capstan_sgd& sgd);
  absl::Status ReadWeights(float* weights, float* momentum);

 private:
  int Ready(int device, int bucket) const { return device * buckets() + bucket; }
  int LaneDone(int device) const { return devices() * buckets() + device; }
  int FoldDone(int device) const { return devices() * (buckets() + 1) + device; }
  int WeightsPushed(int device) const { return devices() * (buckets() + 2) + device; }
  int WeightsThere(int device) const { return devices() * (buckets() + 3) + device; }
  int WeightsFree(int device) const { return devices() * (buckets() + 4) + device; }
  int Emitted(int node, int bucket, int device) const {
    return devices() * (buckets() + 5) + (node * buckets() + bucket) * devices() + device;
  }
  int devices() const { return streams_->devices(); }
  int buckets() const { return static_cast<int>(slices_.size()); }

  template <typename Try>
  absl::Status OrBreak(Try attempt);
  // As much as memory_ says.
  absl::Status TakeMemory();
  absl::Status TryLoadWeights(const float* weights, const float* momentum);
  absl::Status TryUpdate(const capstan_sgd& sgd);
  absl::Status TryReadWeights(float* weights, float* momentum);
  // Before anything writes the devices' weights: kFold waits for those who read them.
  absl::Status WaitToWriteWeights(int device);
  // Each device has written its slices of the weights: all get the rest.
  absl::Status SpreadWeights();
  // kCompute of the device has what SpreadWeights brought; once.
  absl::Status UseNewWeights(int device);
  absl::Status TryCompute(const capstan_group_step& step);
  absl::Status CheckStep(const capstan_group_step& step) const;
  absl::Status EnqueueRound(const capstan_group_step& step, int round);
  absl::Status EnqueueFold(const capstan_group_step& step, int round, int bucket);
  absl::Status Run(const capstan_group_step& step, const capstan_fold_op& op, int bucket);
  // Takes the sums of the lanes of `round`.
  absl::Status FinishRound(const capstan_group_step& step, int round);
  absl::Status WaitFor(int event, int device, const std::string& what);

  const std::unique_ptr<GroupStreams> streams_;
  const double timeout_seconds_;
  std::vector<std::vector<Slice>> slices_;  // by bucket, by device
  std::vector<int64_t> bucket_ends_;
  std::vector<int64_t> slot_floats_;  // by device
  int64_t total_floats_ = 0;
  GroupMemory memory_;  // the most that was needed so far
  std::vector<int64_t> device_bytes_;
  int kept_slot_ = -1;  // the sum that stayed on the devices; -1: none
  bool has_momentum_ = false;
  std::vector<bool> new_weights_;  // by device: there, and not used yet
  absl::Status broken_;
};

struct GroupMember {
  int device = 0;
  int64_t total_floats = 0;
};
// InvalidArgument: plans that are not what the request says they are.
absl::Status CheckGroup(const capstan_group_request& request,
                        const std::vector<GroupMember>& members);

// The stage of backward after which each bucket is final.
std::vector<int> BucketStages(const Program& program, const std::vector<int64_t>& bucket_ends);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_GROUP_H_
