// A fixed set of threads of one plan that run one function together.
//
// A step of a small net has some twenty phases of 50 microseconds each. Putting a thread to sleep
// and waking it would take as long. So a waiting thread polls for a while before it sleeps.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_THREAD_POOL_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "services/sync/mutex.h"

namespace capstan::engine {

// Run must not be called by two threads at the same time, nor from inside a function that it runs.
class ThreadPool {
 public:
  // Starts threads - 1 threads. `threads` is 1 to kMostThreads.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  static constexpr int kMostThreads = 1 << 15;

  int threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls function(argument, worker) once for each worker of [0, workers), at the same time. The
  // caller is worker 0. Returns when all calls have returned. Allocates nothing. `workers` must be
  // 1 to threads().
  void Run(int workers, void (*function)(void* argument, int worker), void* argument);

 private:
  void Loop(int worker);
  // Waits for the first order that is not `seen`.
  uint64_t NextOrder(uint64_t seen);

  // A call of Run in one word: the number of calls so far times 2 kMostThreads, plus its workers. A
  // worker that does not take part reads nothing else, so the next call may come before it has
  // looked. 0: no call yet.
  std::atomic<uint64_t> order_ = 0;
  std::atomic<bool> stop_ = false;
  void (*function_)(void*, int) = nullptr;  // of the current order
  void* argument_ = nullptr;
  std::atomic<int> running_ = 0;  // own threads that have not returned yet

  // A thread that is about to sleep announces it before its last check, and a thread with news
  // checks for sleepers after publishing them. So at least one of the two sees the other.
  std::atomic<int> sleepers_ = 0;
  std::atomic<bool> caller_sleeps_ = false;
  Mutex mu_;
  CondVar wake_;
  CondVar done_;
  std::vector<std::thread> threads_;
};

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_THREAD_POOL_H_
