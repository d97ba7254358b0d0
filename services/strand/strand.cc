#include "services/strand/strand.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "services/clock/clock.h"

namespace capstan::services {

StrandLoop::~StrandLoop() {
  if (wake_fd_ >= 0) close(wake_fd_);
}

absl::Duration StrandLoop::Now() const { return MonotonicNow(); }

// Under the lock, because the loop may be freed as soon as Run returns.
void StrandLoop::WakeLocked() {
  if (!asleep_) return;
  asleep_ = false;
  if (wake_fd_ < 0) return changed_.NotifyOne();
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

void StrandLoop::Post(Function function) {
  MutexLock lock(mu_);
  if (stopped_) return;
  ready_.push_back(std::move(function));
  WakeLocked();
}

void StrandLoop::PostAfter(absl::Duration delay, Function function) {
  const absl::Duration due = Now() + delay;
  MutexLock lock(mu_);
  if (stopped_) return;
  const auto added = timed_.emplace(std::make_pair(due, next_timer_++), std::move(function));
  if (added.first == timed_.begin()) WakeLocked();
}

void StrandLoop::Stop() {
  std::deque<Function> ready;
  std::map<std::pair<absl::Duration, int64_t>, Function> timed;
  MutexLock lock(mu_);
  stopped_ = true;
  // Dropped outside the lock (after it, by the order of destruction): what they hold may post.
  ready.swap(ready_);
  timed.swap(timed_);
  WakeLocked();
}

bool StrandLoop::stopped() {
  MutexLock lock(mu_);
  return stopped_;
}

bool StrandLoop::Add(const std::weak_ptr<StrandSource>& source) {
  {
    MutexLock lock(mu_);
    if (wake_fd_ < 0) wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd_ < 0) return false;
  }
  had_sources_ = true;
  sources_.push_back(source);
  return true;
}

bool StrandLoop::Take(Function* next) {
  MutexLock lock(mu_);
  if (stopped_) return false;
  if (!timed_.empty()) {
    const absl::Duration now = Now();
    while (!timed_.empty() && timed_.begin()->first.first <= now) {
      ready_.push_back(std::move(timed_.begin()->second));
      timed_.erase(timed_.begin());
    }
  }
  if (ready_.empty()) return true;
  *next = std::move(ready_.front());
  ready_.pop_front();
  return true;
}

bool StrandLoop::RunSources() {
  bool ran = false;
  for (size_t i = 0; i < sources_.size(); ++i) {  // a source may add another
    const std::shared_ptr<StrandSource> source = sources_[i].lock();
    if (source == nullptr || !source->Ready()) continue;
    if (stopped()) return true;
    source->Run();
    ran = true;
  }
  return ran;
}

absl::Duration StrandLoop::IdleTimeLocked() const {
  if (timed_.empty()) return absl::InfiniteDuration();
  return std::max(timed_.begin()->first.first - Now(), absl::ZeroDuration());
}

void StrandLoop::Sleep() {
  if (had_sources_) return SleepWithSources();
  MutexLock lock(mu_);
  if (stopped_ || !ready_.empty()) return;
  asleep_ = true;
  changed_.WaitWithTimeout(mu_, IdleTimeLocked());
  asleep_ = false;
}

void StrandLoop::SleepWithSources() {
  std::erase_if(sources_, [this](const std::weak_ptr<StrandSource>& weak) {
    std::shared_ptr<StrandSource> source = weak.lock();
    if (source == nullptr) return true;
    held_.push_back(std::move(source));
    return false;
  });
  bool sleeps = true;
  for (const auto& source : held_) {
    source->SetAsleep(true);
    if (source->Ready()) sleeps = false;
  }
  absl::Duration limit;
  waits_.clear();
  if (sleeps) {
    MutexLock lock(mu_);
    sleeps = asleep_ = !stopped_ && ready_.empty();
    limit = IdleTimeLocked();
    waits_.push_back({wake_fd_, POLLIN, 0});
  }
  if (sleeps) {
    for (const auto& source : held_) waits_.push_back({source->wake_fd(), POLLIN, 0});
    const timespec time = absl::ToTimespec(limit);
    ppoll(waits_.data(), waits_.size(), limit == absl::InfiniteDuration() ? nullptr : &time,
          nullptr);
    uint64_t count = 0;
    if (waits_[0].revents != 0) {
      [[maybe_unused]] const ssize_t taken = read(waits_[0].fd, &count, sizeof(count));
    }
    MutexLock lock(mu_);
    asleep_ = false;
  }
  for (size_t i = 0; i < held_.size(); ++i) {
    held_[i]->SetAsleep(false);
    if (sleeps && waits_[i + 1].revents != 0) held_[i]->OnWakeFd();
  }
  held_.clear();
}

void StrandLoop::Run() {
  for (;;) {
    Function next;
    if (!Take(&next)) return;
    const bool has_function = next != nullptr;
    if (has_function) next();
    next = nullptr;
    if (!RunSources() && !has_function) Sleep();
  }
}

}  // namespace capstan::services
