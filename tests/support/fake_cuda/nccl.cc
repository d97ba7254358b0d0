// NCCL of the stand-in, a library of its own: the calls of nccl_library.cc, with float32 sums only.
//
// A collective is a piece of work on each rank's stream. A rank puts copies of its numbers into
// boxes, one for each receiving rank. A receiver waits for its boxes and adds them in a random
// order, because NCCL promises none. A rank that receives nothing leaves at once: on a card, too,
// the end of a reduction says nothing about the others. The boxes are the only edges between ranks
// that ThreadSanitizer sees, and there is none back to the host (streams.h).
//
// One thread drives all ranks. What makes NCCL hang or is undefined is refused at ncclGroupEnd: a
// rank with other collectives than the others, or overlapping buffers within a group, whose
// collectives may run at the same time.
//
// Some things are refused although NCCL can do them: a rank's collectives of one group on several
// streams, and a clique made within a group. Do not capture them into one graph for several ranks,
// since its nodes run one by one.
//
// CAPSTAN_FAKE_CUDA:
//   seed=7       of the order of sums
//   nccl=lost    the second collective of a clique never ends, and its communicators return
//                ncclRemoteError
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "services/sync/mutex.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace capstan::fake_cuda::nccl {
namespace {

struct Clique {
  std::vector<int> devices;  // by rank
  bool lost = false;
  std::atomic<int64_t> collectives = 0;
  std::atomic<bool> destroyed = false;  // one of its communicators is
};

struct Communicator {
  Clique* clique = nullptr;
  int rank = 0;

  int device() const { return clique->devices[static_cast<size_t>(rank)]; }
  int ranks() const { return static_cast<int>(clique->devices.size()); }
};

enum class Kind { kReduce, kReduceScatter };
struct Call {
  const Communicator* comm = nullptr;
  Kind kind = Kind::kReduce;
  const float* send = nullptr;
  float* receive = nullptr;
  size_t count = 0;
  int root = 0;  // kReduce
  cudaStream_t stream = nullptr;

  bool receives() const { return kind == Kind::kReduceScatter || comm->rank == root; }
  size_t send_floats() const {
    return kind == Kind::kReduce ? count : count * static_cast<size_t>(comm->ranks());
  }
};

struct Group {
  int depth = 0;
  ncclResult_t failure = ncclSuccess;  // the first failure within the group
  std::vector<Call> calls;
};
thread_local Group group;
thread_local std::string last_error;

// Waiting threads give up, because the process ends.
std::atomic<bool> leaving = false;
struct Leaves {
  ~Leaves() { leaving.store(true, std::memory_order_relaxed); }
} at_exit;

ncclResult_t Refuse(ncclResult_t result, const std::string& why) {
  Complain("NCCL: " + why);
  last_error = why;
  if (group.depth > 0 && group.failure == ncclSuccess) group.failure = result;
  return result;
}

// --- Communicators, used only by the host's threads ----------------------------------------------

struct Registry {
  Mutex mu;
  std::map<ncclComm_t, std::unique_ptr<Communicator>> comms ABSL_GUARDED_BY(mu);
};
Registry& Comms() {
  static auto& registry = *new Registry;  // calls may come while the process ends
  return registry;
}

// Null: there is none.
Communicator* FindComm(ncclComm_t comm) {
  Registry& registry = Comms();
  MutexLock lock(registry.mu);
  const auto it = registry.comms.find(comm);
  return it == registry.comms.end() ? nullptr : it->second.get();
}

// Keeps the object until the process ends, because running work may still point to it. A reference
// count would be an edge between the ranks.
template <typename T>
T* Keep(std::unique_ptr<T> object) {
  static Mutex& mu = *new Mutex;
  static auto& all = *new std::vector<std::unique_ptr<T>>;
  MutexLock lock(mu);
  return all.emplace_back(std::move(object)).get();
}

// --- Collectives ---------------------------------------------------------------------------------

// Numbers on their way from one rank to another. The sender fills it and the receiver empties it,
// so a captured collective may run again.
struct Box {
  std::atomic<uint32_t> full = 0;
  std::vector<float> numbers;
};

// One collective of a clique.
class Meeting {
 public:
  // `calls` are by rank.
  Meeting(std::vector<Call> calls, int64_t number, uint32_t seed)
      : calls_(std::move(calls)),
        clique_(calls_[0].comm->clique),
        number_(number),
        seed_(seed),
        boxes_(calls_.size() * calls_.size()),
        runs_(calls_.size(), 0) {}

  // Does a rank's part, on its stream.
  void Run(size_t rank) {
    if (clique_->lost && number_ >= 2) return NeverEnd();
    if (Send(rank) && calls_[rank].receives()) Receive(rank);
  }
  // Gives up, because a rank will not come.
  void Abandon() { abandoned_.store(true, std::memory_order_relaxed); }

 private:
  static constexpr int kNaps = 60000;  // of a millisecond each

  static void Nap(int64_t microseconds) {
    const timespec time = {0, static_cast<decltype(timespec::tv_nsec)>(microseconds * 1000)};
    nanosleep(&time, nullptr);
  }
  bool GivenUp() const {
    return abandoned_.load(std::memory_order_relaxed) || leaving.load(std::memory_order_relaxed) ||
           IsLeftBehind();
  }
  static void SayLate(const std::string& what) {
    Complain("NCCL: " + what + " for a minute: on a card it would for ever");
  }

  void NeverEnd() const {
    for (int nap = 0; nap < kNaps; ++nap) {
      if (GivenUp() || clique_->destroyed.load(std::memory_order_relaxed)) return;
      Nap(1000);
    }
    SayLate("a lost collective blocks its stream");
  }
  bool Wait(const std::atomic<uint32_t>& word, uint32_t value) const {
    for (int nap = 0; word.load(std::memory_order_acquire) != value; ++nap) {
      if (GivenUp()) return false;
      if (nap == kNaps) {
        SayLate("a rank waits for another");
        return false;
      }
      Nap(nap < 1000 ? 20 : 1000);
    }
    return true;
  }

  Box& box(size_t from, size_t to) { return boxes_[from * calls_.size() + to]; }

  bool Send(size_t rank) {
    const Call& call = calls_[rank];
    for (size_t to = 0; to < calls_.size(); ++to) {
      if (!calls_[to].receives()) continue;
      Box& out = box(rank, to);
      if (!Wait(out.full, 0)) return false;
      const float* const begin =
          call.send + (call.kind == Kind::kReduceScatter ? to * call.count : 0);
      out.numbers.assign(begin, begin + call.count);
      out.full.store(1, std::memory_order_release);
    }
    return true;
  }

  void Receive(size_t rank) {
    const Call& call = calls_[rank];
    std::vector<size_t> order(calls_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::seed_seq seeds{int64_t{seed_}, number_, static_cast<int64_t>(rank), ++runs_[rank]};
    std::shuffle(order.begin(), order.end(), std::mt19937(seeds));
    std::vector<float> sums;
    for (const size_t from : order) {
      Box& in = box(from, rank);
      if (!Wait(in.full, 1)) return;
      const std::vector<float> numbers = std::exchange(in.numbers, {});
      in.full.store(0, std::memory_order_release);
      if (sums.empty()) {
        sums = numbers;
      } else {
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += numbers[i];
      }
    }
    std::copy(sums.begin(), sums.end(), call.receive);
  }

  const std::vector<Call> calls_;
  const Clique* const clique_;
  const int64_t number_;  // within the clique, from 1
  const uint32_t seed_;
  std::vector<Box> boxes_;     // by sender and receiver
  std::vector<int64_t> runs_;  // by rank; each rank uses its own
  std::atomic<bool> abandoned_ = false;
};

bool Overlap(const float* left, size_t left_floats, const float* right, size_t right_floats) {
  const auto l = reinterpret_cast<uintptr_t>(left), r = reinterpret_cast<uintptr_t>(right);
  return l < r + right_floats * sizeof(float) && r < l + left_floats * sizeof(float);
}

std::string NameOf(const Call& call) {
  return std::string(call.kind == Kind::kReduce ? "ncclReduce" : "ncclReduceScatter") + ", rank " +
         std::to_string(call.comm->rank);
}

ncclResult_t CheckBuffer(const Call& call, const float* buffer, size_t floats, const char* name) {
  const std::string what = NameOf(call) + ": " + name;
  if (buffer == nullptr) return Refuse(ncclInvalidArgument, what + " is null");
  if (reinterpret_cast<uintptr_t>(buffer) % sizeof(float) != 0) {
    return Refuse(ncclInvalidArgument, what + " holds no floats: its address is odd");
  }
  const Memory memory = Find(buffer);
  if (memory.place == Place::kDevice && memory.device != call.comm->device()) {
    return Refuse(ncclInvalidArgument, what + " is memory of device " +
                                           std::to_string(memory.device) + ", the rank's is " +
                                           std::to_string(call.comm->device()));
  }
  if (!Reaches(call.comm->device(), buffer, floats * sizeof(float), what)) {
    return Refuse(ncclInvalidArgument, what + " is out of reach");
  }
  return ncclSuccess;
}

ncclResult_t Check(const Call& call, ncclDataType_t type, ncclRedOp_t operation) {
  const std::string name = NameOf(call);
  if (type != ncclFloat32 || operation != ncclSum) {
    return Refuse(ncclInvalidArgument, name + ": the stand-in adds float32 alone");
  }
  if (call.root < 0 || call.root >= call.comm->ranks()) {
    return Refuse(ncclInvalidArgument, name + ": no rank " + std::to_string(call.root));
  }
  if (call.count > SIZE_MAX / sizeof(float) / call.comm->clique->devices.size()) {
    return Refuse(ncclInvalidArgument, name + ": more bytes than there are");
  }
  if (DeviceOf(call.stream) != call.comm->device()) {
    return Refuse(ncclInvalidArgument, name + ": the stream is of device " +
                                           std::to_string(DeviceOf(call.stream)) + ", want " +
                                           std::to_string(call.comm->device()));
  }
  if (call.count == 0) return ncclSuccess;
  ncclResult_t result = CheckBuffer(call, call.send, call.send_floats(), "what it sends");
  if (result != ncclSuccess || !call.receives()) return result;
  result = CheckBuffer(call, call.receive, call.count, "where it receives");
  if (result != ncclSuccess) return result;
  const float* const in_place =
      call.send +
      (call.kind == Kind::kReduce ? 0 : static_cast<size_t>(call.comm->rank) * call.count);
  if (call.receive != in_place &&
      Overlap(call.send, call.send_floats(), call.receive, call.count)) {
    return Refuse(ncclInvalidArgument,
                  name + ": receives into a part of what it sends, not in place");
  }
  return ncclSuccess;
}

// Checks one rank's calls within a group, which may run at the same time.
ncclResult_t CheckTogether(const std::vector<Call>& calls) {
  for (size_t i = 0; i < calls.size(); ++i) {
    const Call& left = calls[i];
    if (left.stream != calls[0].stream) {
      return Refuse(ncclInvalidUsage, NameOf(left) + ": another stream than before in the group");
    }
    for (size_t j = 0; left.receives() && j < calls.size(); ++j) {
      const Call& right = calls[j];
      if (i == j) continue;
      if (Overlap(left.receive, left.count, right.send, right.send_floats()) ||
          (right.receives() && Overlap(left.receive, left.count, right.receive, right.count))) {
        return Refuse(ncclInvalidUsage, NameOf(left) + ": receives into memory of " +
                                            NameOf(right) + " in its group");
      }
    }
  }
  return ncclSuccess;
}

// `ranks` has the calls of each rank of a clique.
ncclResult_t CheckClique(const std::vector<std::vector<Call>>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::vector<Call>& calls = ranks[rank];
    if (calls.size() != ranks[0].size()) {
      return Refuse(ncclInvalidUsage, "rank " + std::to_string(rank) + " posted " +
                                          std::to_string(calls.size()) + " collectives, rank 0 " +
                                          std::to_string(ranks[0].size()) +
                                          ": on cards they would hang");
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      const Call &call = calls[i], &first = ranks[0][i];
      if (call.kind != first.kind) {
        return Refuse(ncclInvalidUsage, NameOf(call) + ": rank 0 posted another collective");
      }
      if (call.count != first.count || call.root != first.root) {
        return Refuse(ncclInvalidArgument, NameOf(call) + ": another count or root than rank 0's");
      }
    }
    const ncclResult_t result = CheckTogether(calls);
    if (result != ncclSuccess) return result;
  }
  return ncclSuccess;
}

// Submits the calls of a group, all or none.
ncclResult_t Submit(const std::vector<Call>& calls) {
  std::map<Clique*, std::vector<std::vector<Call>>> cliques;  // by rank
  for (const Call& call : calls) {
    std::vector<std::vector<Call>>& ranks = cliques[call.comm->clique];
    ranks.resize(call.comm->clique->devices.size());
    ranks[static_cast<size_t>(call.comm->rank)].push_back(call);
  }
  for (const auto& [clique, ranks] : cliques) {
    const ncclResult_t result = CheckClique(ranks);
    if (result != ncclSuccess) return result;
  }
  const auto seed = static_cast<uint32_t>(std::stoul(Setting("seed", "1")));
  for (const auto& [clique, ranks] : cliques) {
    for (size_t i = 0; i < ranks[0].size(); ++i) {
      std::vector<Call> together;
      for (const std::vector<Call>& rank : ranks) together.push_back(rank[i]);
      Meeting* const meeting =
          Keep(std::make_unique<Meeting>(together, ++clique->collectives, seed));
      for (size_t rank = 0; rank < together.size(); ++rank) {
        const cudaError_t error =
            Enqueue(together[rank].stream, [meeting, rank] { meeting->Run(rank); });
        if (error == cudaSuccess) continue;
        meeting->Abandon();
        return Refuse(ncclUnhandledCudaError, NameOf(together[rank]) + ": CUDA error " +
                                                  std::to_string(static_cast<int>(error)));
      }
    }
  }
  return ncclSuccess;
}

ncclResult_t Post(ncclComm_t comm, Call call, ncclDataType_t type, ncclRedOp_t operation) {
  call.comm = FindComm(comm);
  if (call.comm == nullptr) return Refuse(ncclInvalidArgument, "no such communicator");
  const ncclResult_t result = Check(call, type, operation);
  if (result != ncclSuccess || call.count == 0) return result;
  if (group.depth == 0) return Submit({call});
  group.calls.push_back(call);
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  if (version == nullptr) return Refuse(ncclInvalidArgument, "ncclGetVersion: null");
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  int present = 0;
  if (cudaGetDeviceCount(&present) != cudaSuccess) {
    return Refuse(ncclUnhandledCudaError, "ncclCommInitAll: no devices");
  }
  if (comms == nullptr || count <= 0) {
    return Refuse(ncclInvalidArgument, "ncclCommInitAll: null, or no device");
  }
  if (group.depth > 0) return Refuse(ncclInvalidUsage, "ncclCommInitAll within a group");
  auto clique = std::make_unique<Clique>();
  for (int rank = 0; rank < count; ++rank) {
    const int device = devices == nullptr ? rank : devices[rank];
    if (device < 0 || device >= present) {
      return Refuse(ncclInvalidArgument, "ncclCommInitAll: no device " + std::to_string(device));
    }
    const std::vector<int>& known = clique->devices;
    if (std::find(known.begin(), known.end(), device) != known.end()) {
      return Refuse(ncclInvalidUsage,
                    "ncclCommInitAll: device " + std::to_string(device) + " twice");
    }
    clique->devices.push_back(device);
  }
  clique->lost = Setting("nccl", "") == "lost";
  Clique* const kept = Keep(std::move(clique));
  Registry& registry = Comms();
  MutexLock lock(registry.mu);
  for (int rank = 0; rank < count; ++rank) {
    auto comm = std::make_unique<Communicator>(Communicator{kept, rank});
    comms[rank] = reinterpret_cast<ncclComm_t>(comm.get());
    registry.comms.emplace(comms[rank], std::move(comm));
  }
  return ncclSuccess;
}

// Waits for nothing. A lost collective ends.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  std::unique_ptr<Communicator> gone;
  {
    Registry& registry = Comms();
    MutexLock lock(registry.mu);
    const auto it = registry.comms.find(comm);
    if (it != registry.comms.end()) {
      gone = std::move(it->second);
      registry.comms.erase(it);
    }
  }
  if (gone == nullptr) return Refuse(ncclInvalidArgument, "ncclCommDestroy: no such communicator");
  gone->clique->destroyed.store(true, std::memory_order_relaxed);
  Keep(std::move(gone));  // calls point to it
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const Communicator* const found = FindComm(comm);
  if (found == nullptr || error == nullptr) {
    return Refuse(ncclInvalidArgument, "ncclCommGetAsyncError: no such communicator, or null");
  }
  *error = found->clique->lost && found->clique->collectives >= 2 ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

// For the calling thread, until its next failure.
const char* ncclGetLastError(ncclComm_t comm) { return last_error.c_str(); }

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

// The outermost call starts what was posted, or returns the first failure and starts nothing.
ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return Refuse(ncclInvalidUsage, "ncclGroupEnd: not in a group");
  if (--group.depth > 0) return ncclSuccess;
  const Group ended = std::exchange(group, {});
  return ended.failure != ncclSuccess ? ended.failure : Submit(ended.calls);
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t operation, int root, ncclComm_t comm, cudaStream_t stream) {
  Call call;
  call.kind = Kind::kReduce;
  call.send = static_cast<const float*>(send);
  call.receive = static_cast<float*>(receive);
  call.count = count;
  call.root = root;
  call.stream = stream;
  return Post(comm, call, type, operation);
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  Call call;
  call.kind = Kind::kReduceScatter;
  call.send = static_cast<const float*>(send);
  call.receive = static_cast<float*>(receive);
  call.count = count;
  call.stream = stream;
  return Post(comm, call, type, operation);
}

}  // extern "C"

}  // namespace capstan::fake_cuda::nccl
