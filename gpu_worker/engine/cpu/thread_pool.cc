#include "gpu_worker/engine/cpu/thread_pool.h"

#include <chrono>

#include "services/check/check.h"

namespace capstan::engine {
namespace {

constexpr uint64_t kOrder = 2 * ThreadPool::kMostThreads;
// Longer than a phase of a small net makes one thread wait for another, and much shorter than a
// scheduler's time slice.
constexpr std::chrono::microseconds kSpin(100);
constexpr int kLooksAtOnce = 16;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Whether `done` became true within kSpin.
template <typename Done>
bool Spin(Done done) {
  const auto begin = std::chrono::steady_clock::now();
  do {
    for (int look = 0; look < kLooksAtOnce; ++look) {
      if (done()) return true;
      Pause();
    }
    std::this_thread::yield();  // gives way to the awaited thread if there are few cores
  } while (std::chrono::steady_clock::now() - begin < kSpin);
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  CAPSTAN_CHECK(threads >= 1 && threads <= kMostThreads);
  threads_.reserve(threads - 1);
  for (int worker = 1; worker < threads; ++worker) {
    threads_.emplace_back([this, worker] { Loop(worker); });
  }
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  order_ += kOrder;
  {
    MutexLock lock(mu_);
    wake_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Run(int workers, void (*function)(void*, int), void* argument) {
  CAPSTAN_CHECK(workers >= 1 && workers <= threads());
  if (workers == 1) return function(argument, 0);
  function_ = function;
  argument_ = argument;
  running_ = workers - 1;
  order_ = (order_ / kOrder + 1) * kOrder + static_cast<uint64_t>(workers);
  if (sleepers_ > 0) {
    MutexLock lock(mu_);
    wake_.NotifyAll();
  }
  function(argument, 0);
  if (Spin([this] { return running_ == 0; })) return;
  MutexLock lock(mu_);
  caller_sleeps_ = true;
  while (running_ > 0) done_.Wait(mu_);
  caller_sleeps_ = false;
}

uint64_t ThreadPool::NextOrder(uint64_t seen) {
  if (Spin([this, seen] { return order_ != seen; })) return order_;
  MutexLock lock(mu_);
  ++sleepers_;
  while (order_ == seen) wake_.Wait(mu_);
  --sleepers_;
  return order_;
}

void ThreadPool::Loop(int worker) {
  for (uint64_t seen = 0;;) {
    seen = NextOrder(seen);
    if (stop_) return;
    if (static_cast<uint64_t>(worker) >= seen % kOrder) continue;
    function_(argument_, worker);
    if (--running_ == 0 && caller_sleeps_) {
      MutexLock lock(mu_);
      done_.NotifyOne();
    }
  }
}

}  // namespace capstan::engine
