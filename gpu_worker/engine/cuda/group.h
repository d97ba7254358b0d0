// Several devices that compute a step together: which work goes to which stream, which work waits
// for which, and in which order buckets reach the host. Plain host code over GroupStreams. The CUDA
// plug-in has streams of a card; the fake one has threads.
//
// Every device has two streams, which may be the same. kCompute runs its lanes; kFold sums its
// slice of each bucket and moves it. kFold works on a bucket as soon as backward has completed it
// on every device. The next lane of a device waits until all others have read its gradient. The
// calling thread enqueues everything and then waits for the buckets in their order.
//
// A sum may stay on the devices. Each device then updates its slices of the weights with its slices
// of the optimizer's state, and gets the other slices from its neighbours. No data of the size of
// the model are copied to or from the host.
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
#include "gpu_worker/engine/cuda/update_segment.h"
#include "gpu_worker/engine/plugin/abi.h"

namespace capstan::engine::cuda {

enum class DeviceStream { kCompute, kFold };

// A device's part of a bucket, in floats of the flat vector.
struct Slice {
  int64_t offset = 0;
  int64_t size = 0;
  int64_t local = 0;  // its place in the device's slots, which contain only its slices
  int bucket = 0;
};

struct GroupMemory {
  int slots = 0;   // sums; each device has its slices of them
  int blocks = 0;  // whole vectors in host memory
  int states = 0;  // floats of the optimizer's state per weight; each device has its slices of them
};

// Callbacks of a lane while it is enqueued, in this order.
struct LaneHooks {
  // Called before the work is enqueued, after the copy of the batch. So if it makes the stream
  // wait, neither that copy nor the host is delayed.
  std::function<absl::Status()> before_compute;
  // Called in rising order, when the work that makes a bucket final has been enqueued.
  std::function<absl::Status(int bucket)> on_bucket;
};

// Streams, events and memory of all devices of a group. Calls come from one thread and return
// before the work is done, except for Done, Sums and copies from host memory.
class GroupStreams {
 public:
  virtual ~GroupStreams() = default;

  virtual int devices() const = 0;
  virtual std::string NameOf(int device) const = 0;  // "GPU 1", for messages
  virtual bool reduces() const = 0;

  // slot_floats: floats of a slot on each device. The sizes never shrink.
  // Work in flight continues with the old memory.
  virtual absl::Status Reserve(const std::vector<int64_t>& slot_floats,
                               const GroupMemory& memory) = 0;
  // Bytes that Reserve has allocated on the device.
  virtual int64_t DeviceBytes(int device) const = 0;
  virtual float* block(int index) = 0;
  virtual float* host_weights() = 0;
  virtual float* host_state() = 0;  // GroupMemory::states vectors in one

  // Events are numbered from 0; the last Record of an event counts.
  virtual void MakeEvents(int count) = 0;
  virtual absl::Status Record(int event, int device, DeviceStream stream) = 0;
  virtual absl::Status Wait(int event, int device, DeviceStream stream) = 0;
  // Whether the event has happened; true if it was never recorded. An error means that a device
  // failed.
  virtual absl::StatusOr<bool> Done(int event) = 0;

  // kCompute: forward, loss, backward. Reads the batch before it returns. Nothing ahead of
  // before_compute writes the gradient.
  virtual absl::Status EnqueueLane(int device, const capstan_batch& batch, double loss_scale,
                                   const LaneHooks& hooks) = 0;
  // The sums of the device's last lane, which must be done.
  virtual capstan_result Sums(int device) const = 0;

  // On kFold of `device`.
  virtual absl::Status Take(int device, int from, const Slice& slice, int slot) = 0;
  virtual absl::Status AddLane(int device, int from, const Slice& slice, int slot) = 0;
  virtual absl::Status AddSlot(int device, const Slice& slice, int slot, int from) = 0;
  virtual absl::Status Emit(int device, const Slice& slice, int slot, int block) = 0;
  // Checks whether the whole slot is finite, for TakeFinite.
  virtual absl::Status CheckFinite(int device, const Slice& slice, int slot) = 0;
  // Whether everything that the device checked since the last call was finite. The checks must be
  // done.
  virtual bool TakeFinite(int device) = 0;
  // On kFold of all devices: slot of each = (or +=) its slice of the sum over the devices.
  virtual absl::Status Reduce(const std::vector<Slice>& slices, int slot, bool add) = 0;

  // On kFold of `device`: copies a part of the weights from host_weights(), from a neighbour or to
  // host_weights(), and of the state from and to host_state().
  virtual absl::Status PushWeights(int device, const Slice& slice) = 0;
  virtual absl::Status PullWeights(int device, int from, const Slice& slice) = 0;
  virtual absl::Status EmitWeights(int device, const Slice& slice) = 0;
  virtual absl::Status PushState(int device, const Slice& slice) = 0;
  virtual absl::Status EmitState(int device, const Slice& slice) = 0;
  // Updates weights and state of all segments with the sum in the slot.
  virtual absl::Status Update(int device, const std::vector<UpdateSegment>& segments, int slot) = 0;
  // On kCompute: the weights have arrived.
  virtual absl::Status UseWeights(int device) = 0;

  // The status of the library between the devices.
  virtual absl::Status CommunicatorStatus() = 0;
  // Stops waiting for anything and leaves hanging work behind.
  virtual void Abandon() = 0;
};

class Group {
 public:
  // `streams` has request.plan_count devices.
  Group(std::unique_ptr<GroupStreams> streams, const capstan_group_request& request);

  bool reduces() const { return streams_->reduces(); }
  // A device failed, or a wait timed out, and the streams were abandoned.
  bool broken() const { return !broken_.ok(); }
  // Allocates what the request asks for. Call it first. If it fails, the plans are unchanged.
  absl::Status Reserve() { return TakeMemory(); }
  // Bytes of the group on each device, in addition to the plans. The same vector until Compute or
  // LoadWeights needs more than was reserved.
  const std::vector<int64_t>& device_bytes() const { return device_bytes_; }
  // As group_load_weights, group_compute, group_update and group_read_weights of the ABI. After a
  // device error or a timeout the group always returns that error.
  absl::Status LoadWeights(const float* weights, const float* state);
  absl::Status Compute(const capstan_group_step& step);
  absl::Status Update(const capstan_update& update);
  absl::Status ReadWeights(float* weights, float* state);

 private:
  int Ready(int device, int bucket) const { return device * buckets() + bucket; }
  int LaneDone(int device) const { return devices() * buckets() + device; }
  int FoldDone(int device) const { return devices() * (buckets() + 1) + device; }
  int WeightsPushed(int device) const { return devices() * (buckets() + 2) + device; }
  int WeightsThere(int device) const { return devices() * (buckets() + 3) + device; }
  int WeightsFree(int device) const { return devices() * (buckets() + 4) + device; }
  int Emitted(int block, int bucket, int device) const {
    return devices() * (buckets() + 5) + (block * buckets() + bucket) * devices() + device;
  }
  int devices() const { return streams_->devices(); }
  int buckets() const { return static_cast<int>(slices_.size()); }

  template <typename Try>
  absl::Status OrBreak(Try attempt);
  // Allocates as much as memory_ says.
  absl::Status TakeMemory();
  absl::Status TryLoadWeights(const float* weights, const float* state);
  absl::Status CheckUpdate(const capstan_update& update) const;
  absl::Status TryUpdate(const capstan_update& update);
  // What the device updates of its slices.
  std::vector<UpdateSegment> SegmentsOf(int device, const capstan_update& update) const;
  absl::Status TryReadWeights(float* weights, float* state);
  // Must be called before the devices' weights are written: kFold waits for their readers.
  absl::Status WaitToWriteWeights(int device);
  // Each device has written its slices of the weights; gives the rest to all others.
  absl::Status SpreadWeights();
  // Lets kCompute of the device use the result of SpreadWeights, once.
  absl::Status UseNewWeights(int device);
  absl::Status TryCompute(const capstan_group_step& step);
  absl::Status CheckStep(const capstan_group_step& step) const;
  absl::Status EnqueueRound(const capstan_group_step& step, int round);
  absl::Status EnqueueFold(const capstan_group_step& step, int round, int bucket);
  absl::Status Run(const capstan_group_step& step, const capstan_fold_op& op, int bucket);
  // Collects the sums of the lanes of `round`.
  absl::Status FinishRound(const capstan_group_step& step, int round);
  absl::Status WaitFor(int event, int device, const std::string& what);

  const std::unique_ptr<GroupStreams> streams_;
  const double timeout_seconds_;
  std::vector<std::vector<Slice>> slices_;  // by bucket, by device
  std::vector<int64_t> bucket_ends_;
  std::vector<int64_t> slot_floats_;  // by device
  int64_t total_floats_ = 0;
  GroupMemory memory_;  // the largest needed so far
  std::vector<int64_t> device_bytes_;
  int kept_slot_ = -1;  // the sum that stayed on the devices; -1: none
  bool has_state_ = false;
  std::vector<bool> new_weights_;  // by device: arrived, but not used yet
  absl::Status broken_;
};

struct GroupMember {
  int device = 0;
  int64_t total_floats = 0;
};
// InvalidArgument: the plans are not those that the request describes.
absl::Status CheckGroup(const capstan_group_request& request,
                        const std::vector<GroupMember>& members);

// The stage of backward after which each bucket is final.
std::vector<int> BucketStages(const CardProgram& program, const std::vector<int64_t>& bucket_ends);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_GROUP_H_
