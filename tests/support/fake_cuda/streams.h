// What stands behind the opaque pointers of CUDA, and how work gets from a call to a thread.
//
// A stream's queue has one edge alone that ThreadSanitizer sees: from the call that appended a
// piece of work to its run. The way back, from the run to the host or to another stream, is a
// Ticket, which is what an event or a synchronising call waits for; so a host that touches memory
// too early, or a stream that does not wait for another, is a race there as on a card. Hence no
// lock and no shared counter between the two sides.
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

// Something that comes to pass once, on a stream.
class Ticket {
 public:
  bool done() const { return done_.load(std::memory_order_acquire) != 0; }
  // When it came to pass; once done().
  absl::Duration time() const { return time_; }
  void Finish();
  // For ever where `limit` is infinite. False: it has not come to pass within it.
  bool Wait(absl::Duration limit);

 private:
  std::atomic<uint32_t> done_ = 0;
  absl::Duration time_;  // MonotonicNow()
};
// Kept until the process ends: a counter of references would be an edge between threads.
Ticket* NewTicket();

struct Node {
  Work work;
  std::vector<size_t> after;  // nodes in front of it
};
using Nodes = std::vector<Node>;

// Of a stream that captures, shared with the streams that joined.
struct Capture {
  cudaStream_t origin = nullptr;
  Nodes nodes;
  std::vector<cudaStream_t> streams;  // the origin and all that joined
  cudaError_t broken = cudaSuccess;
};

// Whether the calling thread captures: what CUDA calls unsafe is refused then.
bool ThreadCaptures();
// The failure of a device, which every call that has to do with it answers from then on.
cudaError_t StickyError(int device);
// Looks whether the environment has other words about faults, which make the devices well again.
void ReadWorld();
// The host waits. A wait that takes minutes ends the process: nothing of a test does.
void HostWait(Ticket* ticket);
// Waits until every stream has run what it was given.
void WaitForAll();

}  // namespace capstan::fake_cuda

struct CUstream_st {
  explicit CUstream_st(int on_device);
  ~CUstream_st();
  void Push(capstan::fake_cuda::Work work);
  // On the stream's thread: counts a piece of work and does to it what the environment wants.
  // False: it is not done, for the device has failed.
  bool Healthy();
  std::minstd_rand& random() { return random_; }  // of the stream's thread
  // What is left in the queue is not done any more; End waits for the thread.
  void LeaveBehind() { left_behind_ = true; }
  bool is_left_behind() const { return left_behind_; }
  void End();

  const int device;
  // Calls of the host alone, one at a time.
  std::shared_ptr<capstan::fake_cuda::Capture> capture;
  std::vector<size_t> last;  // nodes that the next one follows

 private:
  struct Item {
    capstan::fake_cuda::Work work;
    std::atomic<Item*> next = nullptr;
  };
  void Run();
  void BeLate();

  Item* head_;  // the stream's; done already
  Item* tail_;  // the host's
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
  // Recorded in a capture instead: where it stands there.
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
