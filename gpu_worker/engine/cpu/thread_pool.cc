#include "gpu_worker/engine/cpu/thread_pool.h"

#include "gpu_worker/engine/cpu/vendor_threads.h"
#include "services/check/check.h"

namespace capstan::engine {

ThreadPool::ThreadPool(int threads) {
  CAPSTAN_CHECK(threads >= 1);
  threads_.reserve(threads - 1);
  for (int worker = 1; worker < threads; ++worker) {
    threads_.emplace_back([this, worker] { Loop(worker); });
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    wake_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(int workers, void (*function)(void*, int), void* argument) {
  CAPSTAN_CHECK(workers >= 1 && workers <= threads());
  if (workers > 1) {
    MutexLock lock(mu_);
    function_ = function;
    argument_ = argument;
    workers_ = workers;
    running_ = workers - 1;
    ++round_;
    wake_.NotifyAll();
  }
  function(argument, 0);
  if (workers > 1) {
    MutexLock lock(mu_);
    while (running_ > 0) done_.Wait(mu_);
  }
}

void ThreadPool::Loop(int worker) {
  SetVendorThreads(1);
  int64_t seen = 0;
  for (;;) {
    void (*function)(void*, int) = nullptr;
    void* argument = nullptr;
    {
      MutexLock lock(mu_);
      while (!stop_ && round_ == seen) wake_.Wait(mu_);
      if (stop_) return;
      seen = round_;
      if (worker >= workers_) continue;
      function = function_;
      argument = argument_;
    }
    function(argument, worker);
    MutexLock lock(mu_);
    if (--running_ == 0) done_.NotifyOne();
  }
}

}  // namespace capstan::engine
