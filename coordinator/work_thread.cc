#include "coordinator/work_thread.h"

#include <algorithm>
#include <utility>

#include "services/check/check.h"
#include "services/clock/clock.h"

namespace capstan::coordinator {

WorkThread::WorkThread(std::function<void()> after_batch)
    : after_batch_(std::move(after_batch)), thread_([this] { Run(); }) {}

WorkThread::~WorkThread() { Stop(); }

void WorkThread::Post(std::function<void()> task) {
  MutexLock lock(mu_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));
  const absl::Duration now = -absl::InfiniteDuration();
  if (std::exchange(run_at_, now) != now) changed_.NotifyOne();
}

void WorkThread::PostSoon(std::function<void()> task) {
  MutexLock lock(mu_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));
  if (run_at_ != absl::InfiniteDuration()) return;
  run_at_ = MonotonicNow() + kSoon;
  changed_.NotifyOne();
}

void WorkThread::CallAt(absl::Duration when, std::function<void()> task) {
  CAPSTAN_CHECK(OnStrand());
  timers_.emplace(when, std::move(task));
}

void WorkThread::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyOne();
  }
  if (thread_.joinable()) thread_.join();
}

void WorkThread::Run() {
  for (;;) {
    std::deque<std::function<void()>> tasks;
    bool last = false;
    {
      MutexLock lock(mu_);
      while (!stopping_) {
        absl::Duration when = run_at_;
        if (!timers_.empty()) when = std::min(when, timers_.begin()->first);
        const absl::Duration wait = when - MonotonicNow();
        if (wait <= absl::ZeroDuration()) break;
        changed_.WaitWithTimeout(mu_, wait);
      }
      tasks.swap(tasks_);
      run_at_ = absl::InfiniteDuration();
      last = stopping_;
    }
    for (std::function<void()>& task : tasks) {
      task();
      task = nullptr;  // frees what it holds now, not with the last task
    }
    if (last) {
      after_batch_();
      return;
    }
    // Tasks first, so that a heartbeat in the queue counts before its lease is checked.
    const absl::Duration now = MonotonicNow();
    while (!timers_.empty() && timers_.begin()->first <= now) {
      std::function<void()> task = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
      task();
    }
    after_batch_();
  }
}

}  // namespace capstan::coordinator
