// A fixed set of threads that run one function together: the plan's own, so that no OpenMP runtime
// of a library decides how many threads touch a lane.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_THREAD_POOL_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_THREAD_POOL_H_

#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "services/sync/mutex.h"

namespace capstan::engine {

// Run must not be called by two threads at once, nor from inside a function that it runs.
class ThreadPool {
 public:
  // Starts threads - 1 threads, each with one thread for vendor libraries (vendor_threads.h).
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls function(argument, worker) once for each worker of [0, workers), at the same time; the
  // caller is worker 0. Returns when all have returned. Allocates nothing. `workers` is 1 to
  // threads().
  void Run(int workers, void (*function)(void* argument, int worker), void* argument);

 private:
  void Loop(int worker);

  Mutex mu_;
  CondVar wake_;
  CondVar done_;
  void (*function_)(void*, int) ABSL_GUARDED_BY(mu_) = nullptr;
  void* argument_ ABSL_GUARDED_BY(mu_) = nullptr;
  int64_t round_ ABSL_GUARDED_BY(mu_) = 0;  // counts calls of Run
  int workers_ ABSL_GUARDED_BY(mu_) = 0;
  int running_ ABSL_GUARDED_BY(mu_) = 0;  // own threads that have not returned
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_THREAD_POOL_H_
