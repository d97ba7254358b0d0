#include "gpu_worker/engine/plugin/fake/fake_streams.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/cuda/rules.h"
#include "services/sync/mutex.h"
#include "training/fold/add.h"

namespace capstan::engine::cuda {
namespace {

struct Faults {
  int fault_member = -1;
  int64_t fault_lane = -1;
  int hang_bucket = -1;
  bool lost = false;
};

Faults ReadFaults() {
  Faults faults;
  const char* const text = std::getenv("CAPSTAN_FAKE_GROUP");
  if (text == nullptr) return faults;
  long long lane = -1;
  if (std::sscanf(text, "fault:%d:%lld", &faults.fault_member, &lane) == 2) {
    faults.fault_lane = lane;
  } else if (std::string(text) == "lost") {
    faults.lost = true;
    faults.hang_bucket = 0;
  } else {
    std::sscanf(text, "hang:%d", &faults.hang_bucket);
  }
  return faults;
}

class FakeStreams : public GroupStreams {
 public:
  FakeStreams(std::vector<FakeMember> members, std::vector<int64_t> bucket_ends, bool reduces)
      : faults_(ReadFaults()),
        bucket_ends_(std::move(bucket_ends)),
        reduces_(reduces),
        members_(std::move(members)),
        host_weights_(static_cast<size_t>(bucket_ends_.back())) {
    for (size_t i = 0; i < members_.size(); ++i) {
      auto memory = std::make_unique<Memory>();
      memory->lane = memory->gradient = memory->weights = host_weights_;
      memory_.push_back(std::move(memory));
    }
    // Make all of them before the first thread starts, because it reads the vector.
    for (size_t i = 0; i < 2 * members_.size(); ++i) {
      workers_.push_back(std::make_unique<Worker>());
    }
    for (size_t i = 0; i < workers_.size(); ++i) {
      workers_[i]->thread = std::thread([this, i] { Work(*workers_[i], static_cast<int>(i)); });
    }
  }

  ~FakeStreams() override {
    {
      MutexLock lock(mu_);
      ending_ = true;
      changed_.NotifyAll();
    }
    for (const auto& worker : workers_) worker->thread.join();
    for (int d = 0; d < devices(); ++d) members_[d].take(-memory_[d]->bytes).IgnoreError();
  }

  int devices() const override { return static_cast<int>(members_.size()); }
  std::string NameOf(int device) const override {
    return absl::StrCat("GPU ", members_[device].device);
  }
  bool reduces() const override { return reduces_; }

  absl::Status Reserve(const std::vector<int64_t>& slot_floats,
                       const GroupMemory& wanted) override {
    for (size_t d = 0; d < memory_.size(); ++d) {
      Memory& memory = *memory_[d];
      const auto floats = static_cast<size_t>(slot_floats[d]);
      const int64_t vectors = wanted.slots + wanted.states;
      const int64_t more = vectors * slot_floats[d] * 4 - memory.bytes;
      if (absl::Status status = members_[d].take(more); !status.ok()) return status;
      memory.bytes += more;
      memory.slots.resize(wanted.slots, std::vector<float>(floats));
      memory.state.resize(floats * static_cast<size_t>(wanted.states));
    }
    // Work of the step before may still read it.
    if (states_ != wanted.states) states_ = wanted.states;
    host_state_.resize(host_weights_.size() * static_cast<size_t>(states_));
    blocks_.resize(wanted.blocks, std::vector<float>(host_weights_.size()));
    return absl::OkStatus();
  }
  int64_t DeviceBytes(int device) const override { return memory_[device]->bytes; }
  float* block(int index) override { return blocks_[index].data(); }
  float* host_weights() override { return host_weights_.data(); }
  float* host_state() override { return host_state_.data(); }

  void MakeEvents(int count) override {
    MutexLock lock(mu_);
    if (static_cast<size_t>(count) > events_.size()) events_.resize(count);
  }
  absl::Status Record(int event, int device, DeviceStream stream) override {
    int64_t ticket = 0;
    {
      MutexLock lock(mu_);
      events_[event].device = device;
      ticket = ++events_[event].recorded;
    }
    Push(device, stream, [this, event, ticket] {
      MutexLock lock(mu_);
      events_[event].done = ticket;
      changed_.NotifyAll();
    });
    return absl::OkStatus();
  }
  absl::Status Wait(int event, int device, DeviceStream stream) override {
    int64_t ticket = 0;
    {
      MutexLock lock(mu_);
      ticket = events_[event].recorded;
    }
    Push(device, stream, [this, event, ticket] {
      MutexLock lock(mu_);
      while (events_[event].done < ticket && !ending_) changed_.Wait(mu_);
    });
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Done(int event) override {
    MutexLock lock(mu_);
    // As on a card, the other devices continue.
    if (events_[event].device == failed_device_) return failure_;
    return events_[event].done == events_[event].recorded;
  }

  absl::Status EnqueueLane(int device, const capstan_batch& batch, double loss_scale,
                           const LaneHooks& hooks) override {
    const auto bytes = static_cast<size_t>(
        batch.count * SampleBytes(batch.image_type, members_[device].image_elements));
    const auto* const images = static_cast<const char*>(batch.images);
    std::vector<char> pixels(images, images + bytes);
    std::vector<int32_t> labels;
    if (batch.labels != nullptr) labels.assign(batch.labels, batch.labels + batch.count);
    std::vector<float> targets;
    if (batch.targets != nullptr) {
      targets.assign(batch.targets, batch.targets + batch.count * batch.target_size);
    }
    std::vector<int64_t> ids;
    if (batch.ids != nullptr) ids.assign(batch.ids, batch.ids + batch.count);
    if (absl::Status s = hooks.before_compute(); !s.ok()) return s;
    Push(device, DeviceStream::kCompute,
         [this, device, batch, loss_scale, pixels = std::move(pixels), labels = std::move(labels),
          targets = std::move(targets), ids = std::move(ids)] {
           capstan_batch own = batch;
           own.images = pixels.data();
           own.labels = labels.data();
           own.targets = targets.data();
           own.ids = ids.empty() ? nullptr : ids.data();
           Memory& memory = *memory_[device];
           absl::Status status =
               members_[device].train(own, loss_scale, memory.lane.data(), &memory.sums);
           if (device == faults_.fault_member && memory.lanes++ == faults_.fault_lane) {
             status = absl::InternalError(
                 "cudaEventQuery: 700 (an illegal memory access was encountered)");
           }
           if (status.ok()) return;
           MutexLock lock(mu_);
           failed_device_ = device;
           failure_ = status;
         });
    // One bucket after the other, as backward completes them.
    int64_t begin = 0;
    for (size_t bucket = 0; bucket < bucket_ends_.size(); ++bucket) {
      const int64_t end = bucket_ends_[bucket];
      Push(device, DeviceStream::kCompute, [this, device, begin, end] {
        Memory& memory = *memory_[device];
        std::copy(memory.lane.begin() + begin, memory.lane.begin() + end,
                  memory.gradient.begin() + begin);
      });
      begin = end;
      if (absl::Status s = hooks.on_bucket(static_cast<int>(bucket)); !s.ok()) return s;
    }
    return absl::OkStatus();
  }
  capstan_result Sums(int device) const override { return memory_[device]->sums; }

  absl::Status Take(int device, int from, const Slice& slice, int slot) override {
    Push(device, DeviceStream::kFold, [this, device, from, slice, slot] {
      HangIn(slice.bucket);
      std::memcpy(Slot(device, slice, slot), Gradient(from, slice), Bytes(slice));
    });
    return absl::OkStatus();
  }
  absl::Status AddLane(int device, int from, const Slice& slice, int slot) override {
    Push(device, DeviceStream::kFold, [this, device, from, slice, slot] {
      training::AddInto(Slot(device, slice, slot), Gradient(from, slice),
                        static_cast<size_t>(slice.size));
    });
    return absl::OkStatus();
  }
  absl::Status AddSlot(int device, const Slice& slice, int slot, int from) override {
    Push(device, DeviceStream::kFold, [this, device, slice, slot, from] {
      training::AddInto(Slot(device, slice, slot), Slot(device, slice, from),
                        static_cast<size_t>(slice.size));
    });
    return absl::OkStatus();
  }
  absl::Status Emit(int device, const Slice& slice, int slot, int block) override {
    Push(device, DeviceStream::kFold, [this, device, slice, slot, block] {
      std::memcpy(blocks_[block].data() + slice.offset, Slot(device, slice, slot), Bytes(slice));
    });
    return absl::OkStatus();
  }

  absl::Status CheckFinite(int device, const Slice& slice, int slot) override {
    Push(device, DeviceStream::kFold, [this, device, slice, slot] {
      const float* const sum = Slot(device, slice, slot);
      if (!training::AllFinite({sum, static_cast<size_t>(slice.size)})) {
        memory_[device]->finite = false;
      }
    });
    return absl::OkStatus();
  }
  bool TakeFinite(int device) override { return std::exchange(memory_[device]->finite, true); }

  // As NCCL's: no device begins before all have arrived, and none leaves before all have been read.
  absl::Status Reduce(const std::vector<Slice>& slices, int slot, bool add) override {
    struct Meeting {
      int arrived = 0, left = 0;
    };
    auto meeting = std::make_shared<Meeting>();
    const auto meet = [this](int& count) {
      MutexLock lock(mu_);
      ++count;
      changed_.NotifyAll();
      while (count < devices() && !ending_) changed_.Wait(mu_);
      return !ending_;
    };
    for (int device = 0; device < devices(); ++device) {
      Push(device, DeviceStream::kFold,
           [this, meet, meeting, device, slice = slices[device], slot, add] {
             HangIn(slice.bucket);
             if (!meet(meeting->arrived)) return;
             float* const to = Slot(device, slice, slot);
             if (!add) std::memset(to, 0, Bytes(slice));
             // Not the tree's order, so that a dependence on the order shows.
             for (int from = devices() - 1; from >= 0; --from) {
               training::AddInto(to, Gradient(from, slice), static_cast<size_t>(slice.size));
             }
             meet(meeting->left);
           });
    }
    return absl::OkStatus();
  }

  absl::Status PushWeights(int device, const Slice& slice) override {
    Push(device, DeviceStream::kFold, [this, device, slice] {
      std::memcpy(Weights(device, slice), host_weights_.data() + slice.offset, Bytes(slice));
    });
    return absl::OkStatus();
  }
  absl::Status PullWeights(int device, int from, const Slice& slice) override {
    Push(device, DeviceStream::kFold, [this, device, from, slice] {
      std::memcpy(Weights(device, slice), Weights(from, slice), Bytes(slice));
    });
    return absl::OkStatus();
  }
  absl::Status EmitWeights(int device, const Slice& slice) override {
    Push(device, DeviceStream::kFold, [this, device, slice] {
      std::memcpy(host_weights_.data() + slice.offset, Weights(device, slice), Bytes(slice));
    });
    return absl::OkStatus();
  }
  absl::Status PushState(int device, const Slice& slice) override {
    Push(device, DeviceStream::kFold, [this, device, slice] {
      std::memcpy(State(device, slice.local), host_state_.data() + slice.offset * states_,
                  Bytes(slice) * static_cast<size_t>(states_));
    });
    return absl::OkStatus();
  }
  absl::Status EmitState(int device, const Slice& slice) override {
    Push(device, DeviceStream::kFold, [this, device, slice] {
      std::memcpy(host_state_.data() + slice.offset * states_, State(device, slice.local),
                  Bytes(slice) * static_cast<size_t>(states_));
    });
    return absl::OkStatus();
  }
  absl::Status Update(int device, const std::vector<UpdateSegment>& segments, int slot) override {
    Push(device, DeviceStream::kFold, [this, device, segments, slot] {
      Memory& memory = *memory_[device];
      for (const UpdateSegment& segment : segments) {
        const float* const sum = memory.slots[slot].data() + segment.local;
        float* const weights = memory.weights.data() + segment.offset;
        for (int64_t i = 0; i < segment.size; ++i) {
          UpdateOne(segment, sum[i], weights + i, State(device, segment.local + i),
                    [](float x) { return std::sqrt(x); });
        }
      }
    });
    return absl::OkStatus();
  }
  absl::Status UseWeights(int device) override {
    Push(device, DeviceStream::kCompute,
         [this, device] { members_[device].load(memory_[device]->weights.data()); });
    return absl::OkStatus();
  }

  absl::Status CommunicatorStatus() override {
    return faults_.lost ? absl::InternalError("ncclCommGetAsyncError: 6 ncclRemoteError (lost)")
                        : absl::OkStatus();
  }
  void Abandon() override {
    MutexLock lock(mu_);
    ending_ = true;
    changed_.NotifyAll();
  }

 private:
  struct Memory {
    std::vector<float> lane, gradient, weights, state;
    int64_t bytes = 0;                     // for slots and state
    std::deque<std::vector<float>> slots;  // a deque: slots in use must not move
    capstan_result sums = {};
    bool finite = true;
    int64_t lanes = 0;
  };
  struct Worker {
    std::deque<std::function<void()>> work;
    std::thread thread;
  };
  struct Event {
    int device = 0;  // of the last Record
    int64_t recorded = 0, done = 0;
  };

  void Push(int device, DeviceStream stream, std::function<void()> work) {
    MutexLock lock(mu_);
    workers_[2 * device + (stream == DeviceStream::kFold)]->work.push_back(std::move(work));
    changed_.NotifyAll();
  }

  void Work(Worker& worker, int seed) {
    std::minstd_rand random(static_cast<unsigned>(seed + 1));
    for (;;) {
      std::function<void()> work;
      {
        MutexLock lock(mu_);
        while (worker.work.empty() && !ending_) changed_.Wait(mu_);
        if (ending_) return;
        work = std::move(worker.work.front());
        worker.work.pop_front();
      }
      if (random() % 16 == 0) {  // delays a stream, to produce orders that one thread would not
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
      }
      work();
    }
  }

  void HangIn(int bucket) {
    if (bucket != faults_.hang_bucket) return;
    MutexLock lock(mu_);
    while (!ending_) changed_.Wait(mu_);
  }

  float* Slot(int device, const Slice& slice, int slot) {
    return memory_[device]->slots[slot].data() + slice.local;
  }
  const float* Gradient(int device, const Slice& slice) const {
    return memory_[device]->gradient.data() + slice.offset;
  }
  float* Weights(int device, const Slice& slice) {
    return memory_[device]->weights.data() + slice.offset;
  }
  // `local` as in Slice.
  float* State(int device, int64_t local) {
    return memory_[device]->state.data() + local * states_;
  }
  static size_t Bytes(const Slice& slice) { return static_cast<size_t>(slice.size) * 4; }

  const Faults faults_;
  const std::vector<int64_t> bucket_ends_;
  const bool reduces_;
  const std::vector<FakeMember> members_;
  std::vector<float> host_weights_, host_state_;
  int states_ = 0;                               // floats of the optimizer's state per weight
  std::vector<std::unique_ptr<Memory>> memory_;  // by member; the events order the accesses
  std::vector<std::vector<float>> blocks_;

  Mutex mu_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  int failed_device_ ABSL_GUARDED_BY(mu_) = -1;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::vector<Event> events_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Worker>> workers_;  // two per member; mu_ guards their work
};

}  // namespace

std::unique_ptr<GroupStreams> MakeFakeStreams(std::vector<FakeMember> members,
                                              std::vector<int64_t> bucket_ends, bool reduces) {
  return std::make_unique<FakeStreams>(std::move(members), std::move(bucket_ends), reduces);
}

}  // namespace capstan::engine::cuda
