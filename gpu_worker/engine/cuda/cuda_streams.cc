#include "gpu_worker/engine/cuda/cuda_streams.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/cuda/cuda_status.h"
#include "gpu_worker/engine/cuda/kernels.h"
#include "gpu_worker/engine/cuda/nccl_library.h"

namespace capstan::engine::cuda {
namespace {

class CudaStreams : public GroupStreams {
 public:
  CudaStreams(std::vector<CudaPlan*> plans, std::vector<int64_t> bucket_ends)
      : bucket_ends_(std::move(bucket_ends)),
        one_stream_(plans.size() == 1 && bucket_ends_.size() == 1),
        bucket_stages_(BucketStages(plans[0]->program(), bucket_ends_)) {
    for (CudaPlan* const plan : plans) members_.push_back({plan});
  }

  ~CudaStreams() override {
    for (Member& member : members_) {
      cudaSetDevice(member.plan->device());
      if (member.fold != nullptr) cudaStreamSynchronize(member.fold);
    }
    // In an NCCL group, because each one waits for the others and one thread destroys all of them.
    if (!comms_.empty()) nccl_->group_start();
    for (const ncclComm_t comm : comms_) nccl_->comm_destroy(comm);
    if (!comms_.empty()) nccl_->group_end();
    for (const cudaEvent_t event : events_) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    for (Member& member : members_) {
      cudaSetDevice(member.plan->device());
      for (float* const slot : member.slots) cudaFree(slot);
      if (member.scratch != nullptr) cudaFree(member.scratch);
      if (member.state != nullptr) cudaFree(member.state);
      if (member.fold != nullptr && !one_stream_) cudaStreamDestroy(member.fold);
    }
    for (float* const block : blocks_) cudaFreeHost(block);
    if (host_weights_ != nullptr) cudaFreeHost(host_weights_);
    if (host_state_ != nullptr) cudaFreeHost(host_state_);
    if (not_finite_ != nullptr) cudaFreeHost(not_finite_);
  }

  absl::Status Build(bool deterministic, std::string* summary) {
    std::set<int> cards;
    std::vector<int> list;
    for (Member& member : members_) {
      const int device = member.plan->device();
      CAPSTAN_CUDA_RETURN(UseDevice(device));
      if (one_stream_) {
        member.fold = member.plan->stream();
      } else {
        CAPSTAN_CUDA_RETURN(cudaStreamCreateWithFlags(&member.fold, cudaStreamNonBlocking));
      }
      cards.insert(device);
      list.push_back(device);
    }
    for (const int device : cards) {
      CAPSTAN_CUDA_RETURN(UseDevice(device));
      for (const int peer : cards) {
        int can = 0;
        if (peer == device) continue;
        CAPSTAN_CUDA_RETURN(cudaDeviceCanAccessPeer(&can, device, peer));
        if (can == 0) continue;  // copies then go through the host
        const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
        if (error == cudaErrorPeerAccessAlreadyEnabled) {
          cudaGetLastError();
        } else {
          CAPSTAN_CUDA_RETURN(error);
        }
      }
    }
    absl::Status status = AllocatePinned(Bytes(bucket_ends_.back()), &host_weights_);
    if (status.ok()) status = AllocatePinned(members_.size() * sizeof(int32_t), &not_finite_);
    if (!status.ok()) return status;
    std::fill_n(not_finite_, members_.size(), 0);
    cards_ = cards.size();
    *summary = absl::StrCat(members_.size(), members_.size() == 1 ? " GPU" : " GPUs");
    // NCCL refuses a card that is listed twice.
    if (deterministic || members_.size() == 1 || cards.size() != members_.size()) {
      if (members_.size() > 1) absl::StrAppend(summary, ", sums by peer copies");
      return absl::OkStatus();
    }
    // Load it once; a missing library stays missing.
    static const absl::StatusOr<const NcclLibrary*> nccl = LoadNccl();
    if (!nccl.ok()) return nccl.status();
    nccl_ = *nccl;
    std::vector<ncclComm_t> comms(list.size());
    status = nccl_->ToStatus(
        "ncclCommInitAll",
        nccl_->comm_init_all(comms.data(), static_cast<int>(list.size()), list.data()));
    if (!status.ok()) return status;
    comms_ = std::move(comms);
    int version = 0;
    nccl_->get_version(&version);
    absl::StrAppend(summary, ", sums by NCCL ", version / 10000, ".", version / 100 % 100, ".",
                    version % 100);
    return absl::OkStatus();
  }

  int devices() const override { return static_cast<int>(members_.size()); }
  std::string NameOf(int device) const override {
    return absl::StrCat("GPU ", members_[device].plan->device());
  }
  bool reduces() const override { return !comms_.empty(); }

  absl::Status Reserve(const std::vector<int64_t>& slot_floats,
                       const GroupMemory& memory) override {
    for (size_t d = 0; d < members_.size(); ++d) {
      Member& member = members_[d];
      // A device may have no slice of a small model, but it still needs a pointer.
      const size_t bytes = Bytes(std::max<int64_t>(slot_floats[d], 16));
      absl::Status status;
      // A single card copies from no other.
      if (cards_ > 1 && memory.slots > 0 && member.scratch == nullptr) {
        status = Allocate(member, bytes, kForSums, &member.scratch);
      }
      if (status.ok() && memory.states > 0 && member.state == nullptr) {
        status =
            Allocate(member, bytes * static_cast<size_t>(memory.states), kForState, &member.state);
      }
      while (status.ok() && static_cast<int>(member.slots.size()) < memory.slots) {
        float* slot = nullptr;
        status = Allocate(member, bytes, kForSums, &slot);
        if (status.ok()) member.slots.push_back(slot);
      }
      if (!status.ok()) return status;
    }
    states_ = memory.states;
    if (states_ > 0 && host_state_ == nullptr) {
      const absl::Status status =
          AllocatePinned(Bytes(bucket_ends_.back() * states_), &host_state_);
      if (!status.ok()) return status;
    }
    while (static_cast<int>(blocks_.size()) < memory.blocks) {
      float* block = nullptr;
      const absl::Status status = AllocatePinned(Bytes(bucket_ends_.back()), &block);
      if (!status.ok()) return status;
      blocks_.push_back(block);
    }
    return absl::OkStatus();
  }
  int64_t DeviceBytes(int device) const override { return members_[device].bytes; }
  float* block(int index) override { return blocks_[index]; }
  float* host_weights() override { return host_weights_; }
  float* host_state() override { return host_state_; }

  void MakeEvents(int count) override {
    if (static_cast<size_t>(count) > events_.size()) events_.resize(count, nullptr);
  }
  absl::Status Record(int event, int device, DeviceStream stream) override {
    CAPSTAN_CUDA_RETURN(UseDevice(members_[device].plan->device()));
    if (events_[event] == nullptr) {
      CAPSTAN_CUDA_RETURN(cudaEventCreateWithFlags(&events_[event], cudaEventDisableTiming));
    }
    CAPSTAN_CUDA_RETURN(cudaEventRecord(events_[event], StreamOf(device, stream)));
    return absl::OkStatus();
  }
  absl::Status Wait(int event, int device, DeviceStream stream) override {
    if (events_[event] == nullptr || one_stream_) return absl::OkStatus();
    CAPSTAN_CUDA_RETURN(UseDevice(members_[device].plan->device()));
    CAPSTAN_CUDA_RETURN(cudaStreamWaitEvent(StreamOf(device, stream), events_[event], 0));
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Done(int event) override {
    if (events_[event] == nullptr) return true;
    const cudaError_t answer = cudaEventQuery(events_[event]);
    if (answer == cudaErrorNotReady) {
      cudaGetLastError();  // else the next launch would report this error
      return false;
    }
    // The caller adds the device.
    if (answer != cudaSuccess) return absl::InternalError(ErrorText("cudaEventQuery", answer));
    return true;
  }

  absl::Status EnqueueLane(int device, const capstan_batch& batch, double loss_scale,
                           const LaneHooks& hooks) override {
    return members_[device].plan->EnqueueLane(batch, loss_scale, bucket_stages_, hooks);
  }
  capstan_result Sums(int device) const override { return members_[device].plan->sums(); }

  absl::Status Take(int device, int from, const Slice& slice, int slot) override {
    return CopyLane(device, from, slice, Slot(device, slice, slot));
  }
  absl::Status AddLane(int device, int from, const Slice& slice, int slot) override {
    const float* right = members_[from].plan->gradient() + slice.offset;
    if (members_[from].plan->device() != members_[device].plan->device()) {
      float* const scratch = members_[device].scratch + slice.local;
      const absl::Status status = CopyLane(device, from, slice, scratch);
      if (!status.ok()) return status;
      right = scratch;
    }
    return Add(device, slice.size, right, Slot(device, slice, slot));
  }
  absl::Status AddSlot(int device, const Slice& slice, int slot, int from) override {
    return Add(device, slice.size, Slot(device, slice, from), Slot(device, slice, slot));
  }
  absl::Status Emit(int device, const Slice& slice, int slot, int block) override {
    return ToHost(device, Slot(device, slice, slot), slice.size, blocks_[block] + slice.offset);
  }
  absl::Status CheckFinite(int device, const Slice& slice, int slot) override {
    CAPSTAN_CUDA_RETURN(UseDevice(members_[device].plan->device()));
    CAPSTAN_CUDA_RETURN(LaunchCheckFinite(members_[device].fold, slice.size,
                                          Slot(device, slice, slot), &not_finite_[device]));
    return absl::OkStatus();
  }
  bool TakeFinite(int device) override { return std::exchange(not_finite_[device], 0) == 0; }

  absl::Status Reduce(const std::vector<Slice>& slices, int slot, bool add) override {
    // Equal slices are scattered. The last device's rest, below 16 floats per device, follows.
    const int64_t begin = slices[0].offset, each = slices[0].size;
    const int64_t rest = slices.back().size - each;
    const int last = devices() - 1;
    const auto place = [&](int d) {
      return add ? members_[d].scratch + slices[d].local : Slot(d, slices[d], slot);
    };
    absl::Status status = nccl_->ToStatus("ncclGroupStart", nccl_->group_start());
    for (int d = 0; status.ok() && d < devices(); ++d) {
      const float* const gradient = members_[d].plan->gradient() + begin;
      if (each > 0) {
        status = nccl_->ToStatus(
            "ncclReduceScatter",
            nccl_->reduce_scatter(gradient, place(d), static_cast<size_t>(each), ncclFloat32,
                                  ncclSum, comms_[d], members_[d].fold));
      }
      if (status.ok() && rest > 0) {
        status = nccl_->ToStatus(
            "ncclReduce", nccl_->reduce(gradient + each * devices(),
                                        d == last ? place(d) + each : members_[d].scratch,
                                        static_cast<size_t>(rest), ncclFloat32, ncclSum, last,
                                        comms_[d], members_[d].fold));
      }
    }
    const absl::Status ended = nccl_->ToStatus("ncclGroupEnd", nccl_->group_end());
    if (status.ok()) status = ended;
    for (int d = 0; add && status.ok() && d < devices(); ++d) {
      if (slices[d].size > 0) {
        status = Add(d, slices[d].size, place(d), Slot(d, slices[d], slot));
      }
    }
    if (status.ok()) return status;
    return absl::Status(status.code(),
                        absl::StrCat("bucket ", slices[0].bucket, ": ", status.message()));
  }

  absl::Status PushWeights(int device, const Slice& slice) override {
    return FromHost(device, host_weights_ + slice.offset, slice.size, Weights(device, slice));
  }
  absl::Status PullWeights(int device, int from, const Slice& slice) override {
    return Copy(device, from, Weights(from, slice), slice.size, Weights(device, slice));
  }
  absl::Status EmitWeights(int device, const Slice& slice) override {
    return ToHost(device, Weights(device, slice), slice.size, host_weights_ + slice.offset);
  }
  absl::Status PushState(int device, const Slice& slice) override {
    return FromHost(device, host_state_ + slice.offset * states_, slice.size * states_,
                    members_[device].state + slice.local * states_);
  }
  absl::Status EmitState(int device, const Slice& slice) override {
    return ToHost(device, members_[device].state + slice.local * states_, slice.size * states_,
                  host_state_ + slice.offset * states_);
  }
  absl::Status Update(int device, const std::vector<UpdateSegment>& segments, int slot) override {
    const Member& member = members_[device];
    CAPSTAN_CUDA_RETURN(UseDevice(member.plan->device()));
    const UpdateVectors vectors = {member.slots[slot], member.plan->weights(), member.state,
                                   states_};
    for (size_t first = 0; first < segments.size(); first += kMostUpdateSegments) {
      const size_t count = std::min<size_t>(kMostUpdateSegments, segments.size() - first);
      CAPSTAN_CUDA_RETURN(
          LaunchUpdate(member.fold, vectors, &segments[first], static_cast<int>(count)));
    }
    return absl::OkStatus();
  }
  absl::Status UseWeights(int device) override { return members_[device].plan->UseWeights(); }

  absl::Status CommunicatorStatus() override {
    for (size_t d = 0; d < comms_.size(); ++d) {
      ncclResult_t said = ncclSuccess;
      absl::Status status =
          nccl_->ToStatus("ncclCommGetAsyncError", nccl_->comm_get_async_error(comms_[d], &said));
      if (status.ok()) status = nccl_->ToStatus("ncclCommGetAsyncError", said);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  void Abandon() override {
    // Communicators are left behind, too: ncclCommAbort waits for the cards, and the error would
    // never be reported.
    for (Member& member : members_) member.plan->Abandon();
  }

 private:
  struct Member {
    CudaPlan* plan = nullptr;
    cudaStream_t fold = nullptr;
    std::vector<float*> slots = {};
    float* scratch = nullptr;  // as long as a slot; only with several cards
    float* state = nullptr;    // states_ times as long as a slot
    int64_t bytes = 0;         // of all of them
  };

  cudaStream_t StreamOf(int device, DeviceStream stream) const {
    return stream == DeviceStream::kCompute ? members_[device].plan->stream()
                                            : members_[device].fold;
  }
  float* Slot(int device, const Slice& slice, int slot) const {
    return members_[device].slots[slot] + slice.local;
  }
  float* Weights(int device, const Slice& slice) const {
    return members_[device].plan->weights() + slice.offset;
  }
  static size_t Bytes(int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); }

  // What memory is for, and what makes it less.
  static constexpr char kForSums[] = "to sum its lanes; take a smaller batch, or fewer lanes";
  static constexpr char kForState[] =
      "for the optimizer's state; take more GPUs, an optimizer with less state, or a smaller batch";
  absl::Status Allocate(Member& member, size_t bytes, const char* purpose, float** place) {
    CAPSTAN_CUDA_RETURN(UseDevice(member.plan->device()));
    const cudaError_t error = cudaMalloc(reinterpret_cast<void**>(place), bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // it does not stick: the card is well
      return absl::ResourceExhaustedError(absl::StrCat("out of GPU memory: GPU ",
                                                       member.plan->device(), " needs another ",
                                                       bytes, " bytes ", purpose));
    }
    CAPSTAN_CUDA_RETURN(error);
    member.bytes += static_cast<int64_t>(bytes);
    return absl::OkStatus();
  }
  template <typename T>
  absl::Status AllocatePinned(size_t bytes, T** place) {
    const cudaError_t error = cudaMallocHost(reinterpret_cast<void**>(place), bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return HostOutOfMemory(
          absl::StrCat("out of pinned host memory: the group needs another ", bytes, " bytes"));
    }
    CAPSTAN_CUDA_RETURN(error);
    return absl::OkStatus();
  }

  absl::Status Copy(int device, int from, const float* source, int64_t size, float* to) {
    CAPSTAN_CUDA_RETURN(UseDevice(members_[device].plan->device()));
    CAPSTAN_CUDA_RETURN(cudaMemcpyPeerAsync(to, members_[device].plan->device(), source,
                                            members_[from].plan->device(), Bytes(size),
                                            members_[device].fold));
    return absl::OkStatus();
  }
  absl::Status ToHost(int device, const float* source, int64_t size, float* to) {
    CAPSTAN_CUDA_RETURN(UseDevice(members_[device].plan->device()));
    CAPSTAN_CUDA_RETURN(
        cudaMemcpyAsync(to, source, Bytes(size), cudaMemcpyDeviceToHost, members_[device].fold));
    return absl::OkStatus();
  }
  absl::Status FromHost(int device, const float* source, int64_t size, float* to) {
    CAPSTAN_CUDA_RETURN(UseDevice(members_[device].plan->device()));
    CAPSTAN_CUDA_RETURN(
        cudaMemcpyAsync(to, source, Bytes(size), cudaMemcpyHostToDevice, members_[device].fold));
    return absl::OkStatus();
  }
  absl::Status CopyLane(int device, int from, const Slice& slice, float* to) {
    return Copy(device, from, members_[from].plan->gradient() + slice.offset, slice.size, to);
  }
  absl::Status Add(int device, int64_t size, const float* right, float* left) {
    CAPSTAN_CUDA_RETURN(UseDevice(members_[device].plan->device()));
    CAPSTAN_CUDA_RETURN(LaunchAdd(members_[device].fold, size, right, left));
    return absl::OkStatus();
  }

  const std::vector<int64_t> bucket_ends_;
  // One card with one bucket has no other work beside its lane. Both kinds of work then use one
  // stream, so no waits are needed.
  const bool one_stream_;
  size_t cards_ = 1;  // a card may be listed twice
  const std::vector<int> bucket_stages_;
  std::vector<Member> members_;
  std::vector<cudaEvent_t> events_;  // made by the first Record
  std::vector<float*> blocks_;       // pinned
  float* host_weights_ = nullptr;    // pinned
  float* host_state_ = nullptr;      // pinned; only if there is a state
  int states_ = 0;                   // floats of the optimizer's state per weight
  int32_t* not_finite_ = nullptr;    // pinned, by member; a kernel stores 1 there
  const NcclLibrary* nccl_ = nullptr;
  std::vector<ncclComm_t> comms_;  // by member; empty: without NCCL
};

}  // namespace

absl::StatusOr<std::unique_ptr<GroupStreams>> MakeCudaStreams(std::vector<CudaPlan*> plans,
                                                              std::vector<int64_t> bucket_ends,
                                                              bool deterministic,
                                                              std::string* summary) {
  auto streams = std::make_unique<CudaStreams>(std::move(plans), std::move(bucket_ends));
  if (absl::Status status = streams->Build(deterministic, summary); !status.ok()) return status;
  return std::unique_ptr<GroupStreams>(std::move(streams));
}

}  // namespace capstan::engine::cuda
