#include "services/strand/strand.h"

#include <utility>

#include "services/clock/clock.h"

namespace capstan::services {

absl::Duration StrandLoop::Now() const { return MonotonicNow(); }

void StrandLoop::Post(Function function) {
  MutexLock lock(mu_);
  if (stopped_) return;
  ready_.push_back(std::move(function));
  changed_.NotifyOne();
}

void StrandLoop::PostAfter(absl::Duration delay, Function function) {
  const absl::Duration due = Now() + delay;
  MutexLock lock(mu_);
  if (stopped_) return;
  timed_.emplace(std::make_pair(due, next_timer_++), std::move(function));
  changed_.NotifyOne();
}

void StrandLoop::Stop() {
  std::deque<Function> ready;
  std::map<std::pair<absl::Duration, int64_t>, Function> timed;
  MutexLock lock(mu_);
  stopped_ = true;
  // Dropped outside the lock (after it, by the order of destruction): what they hold may post.
  ready.swap(ready_);
  timed.swap(timed_);
  changed_.NotifyOne();
}

void StrandLoop::Run() {
  for (;;) {
    Function next;
    {
      MutexLock lock(mu_);
      for (;;) {
        if (stopped_) return;
        const absl::Duration now = Now();
        while (!timed_.empty() && timed_.begin()->first.first <= now) {
          ready_.push_back(std::move(timed_.begin()->second));
          timed_.erase(timed_.begin());
        }
        if (!ready_.empty()) break;
        changed_.WaitWithTimeout(
            mu_, timed_.empty() ? absl::InfiniteDuration() : timed_.begin()->first.first - now);
      }
      next = std::move(ready_.front());
      ready_.pop_front();
    }
    next();
  }
}

}  // namespace capstan::services
