// The objects behind CUDA's opaque pointers, and how work gets from a call to a thread.
//
// A stream's queue has only one edge that ThreadSanitizer sees, from the call that appends a piece
// of work to its run. The way back, from the run to the host or to another stream, is a Ticket:
// events and synchronising calls wait for it. So a host that touches memory too early, or a stream
// that does not wait for another, is a race here as on a card. Therefore the two sides share no
// lock and no counter.
#ifndef CAPSTAN_TESTS_SUPPORT_FAKE_CUDA_STREAMS_H_
#define CAPSTAN_TESTS_SUPPORT_FAKE_CUDA_STREAMS_H_

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace capstan::fake_cuda {

inline constexpr int kMostDevices = 64;

// An event that happens once, on a stream.
class Ticket {
 public:
  bool done() const { return done_.load(std::memory_order_acquire) != 0; }
  // The time when it happened; valid once done().
  absl::Duration time() const { return time_; }
  void Finish();
  // Waits at most `limit`, which may be infinite. False: timed out.
  bool Wait(absl::Duration limit);

 private:
  std::atomic<uint32_t> done_ = 0;
  absl::Duration time_;  // MonotonicNow()
};
// Tickets live until the process ends, because a reference count would be an edge between threads.
Ticket* NewTicket();

struct Node {
  Work work;
  std::vector<size_t> after;  // nodes that must run first
};
using Nodes = std::vector<Node>;

// Of a capturing stream; shared with the streams that joined it.
struct Capture {
  cudaStream_t origin = nullptr;
  Nodes nodes;
  std::vector<cudaStream_t> streams;  // the origin and all streams that joined
  cudaError_t broken = cudaSuccess;
};

// Whether the calling thread captures. Calls that CUDA calls unsafe are refused then.
bool ThreadCaptures();
// The failure of a device. From then on, every call that concerns the device returns it.
cudaError_t StickyError(int device);
// Checks whether the environment asks for other faults, which makes the devices well again.
void ReadWorld();
// Makes the host wait. A wait of minutes ends the process, because no test needs that long.
void HostWait(Ticket* ticket);
// Waits until every stream has run all its work.
void WaitForAll();

}  // namespace capstan::fake_cuda

struct CUstream_st {
  explicit CUstream_st(int on_device);
  ~CUstream_st();
  void Push(capstan::fake_cuda::Work work);
  // On the stream's thread: counts a piece of work and applies the fault that the environment asks
  // for. False: the work must not run, because the device has failed.
  bool Healthy();
  std::minstd_rand& random() { return random_; }  // for the stream's thread
  // Work left in the queue is not run any more. End waits for the thread.
  void LeaveBehind() { left_behind_ = true; }
  bool is_left_behind() const { return left_behind_; }
  void End();

  const int device;
  // For calls of the host only, one at a time.
  std::shared_ptr<capstan::fake_cuda::Capture> capture;
  std::vector<size_t> last;  // nodes that the next one follows

 private:
  struct Item {
    capstan::fake_cuda::Work work;
    std::atomic<Item*> next = nullptr;
  };
  void Run();
  void BeLate();

  Item* head_;  // the stream's end; already done
  Item* tail_;  // the host's end
  std::atomic<uint32_t> pushed_ = 0;
  const bool late_;
  std::atomic<bool> left_behind_ = false;
  std::minstd_rand random_;
  std::thread thread_;
};

struct CUevent_st {
  int device = 0;
  bool timing = true;
  capstan::fake_cuda::Ticket* ticket = nullptr;  // of the last record; null: never
  // If it was recorded in a capture: its place there.
  std::shared_ptr<capstan::fake_cuda::Capture> capture;
  std::vector<size_t> after;
};

struct CUgraph_st {
  std::shared_ptr<const capstan::fake_cuda::Nodes> nodes;
};

struct CUgraphExec_st {
  std::shared_ptr<const capstan::fake_cuda::Nodes> nodes;
};

#endif  // CAPSTAN_TESTS_SUPPORT_FAKE_CUDA_STREAMS_H_
