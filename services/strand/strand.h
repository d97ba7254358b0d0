// A strand: functions that run one after another, in the order in which they were posted.
//
// Everything of one task, except its devices' arithmetic, runs on one strand, so its parts need no
// locks. The simulation has a strand of its own with a virtual clock.
#ifndef CAPSTAN_SERVICES_STRAND_STRAND_H_
#define CAPSTAN_SERVICES_STRAND_STRAND_H_

#include <poll.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "services/sync/mutex.h"

namespace capstan::services {

// Work that reaches a strand without being posted, such as messages in memory that is shared with
// another process. All methods run on the strand.
class StrandSource {
 public:
  virtual ~StrandSource() = default;
  // Whether there is work for Run.
  virtual bool Ready() = 0;
  // Does some of the work, and returns soon, so that other sources and functions have their turn.
  virtual void Run() = 0;
  // Called before the strand sleeps and after it woke. Whoever makes work for a strand that is
  // asleep makes wake_fd() readable. The strand asks Ready once more after SetAsleep(true).
  virtual void SetAsleep(bool asleep) = 0;
  // -1: nothing can wake the strand for this source.
  virtual int wake_fd() const = 0;
  // wake_fd() is readable. Empties it.
  virtual void OnWakeFd() = 0;
};

class Strand {
 public:
  using Function = std::function<void()>;
  virtual ~Strand() = default;

  // Thread-safe; never waits, never runs `function` before it returns.
  virtual void Post(Function function) = 0;
  // Runs it once `delay` has passed. Thread-safe.
  virtual void PostAfter(absl::Duration delay, Function function) = 0;
  // Monotonic time since an arbitrary origin. Thread-safe.
  virtual absl::Duration Now() const = 0;
  // Whether Add may be called. Thread-safe.
  virtual bool runs_sources() const { return false; }
  // Runs the source whenever it is ready, until it is gone. Call it on the strand. False: the
  // process may open no more files.
  virtual bool Add(const std::weak_ptr<StrandSource>& /*source*/) { return false; }
};

// A strand on the thread that calls Run.
class StrandLoop : public Strand {
 public:
  StrandLoop() = default;
  ~StrandLoop() override;
  StrandLoop(const StrandLoop&) = delete;
  StrandLoop& operator=(const StrandLoop&) = delete;

  void Post(Function function) override ABSL_LOCKS_EXCLUDED(mu_);
  void PostAfter(absl::Duration delay, Function function) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Duration Now() const override;
  bool runs_sources() const override { return true; }
  bool Add(const std::weak_ptr<StrandSource>& source) override ABSL_LOCKS_EXCLUDED(mu_);

  // Runs functions until Stop. Once; by one thread.
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Run returns after the function under way; what is left is dropped, later posts too.
  // Thread-safe.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // The next function that is due; null: none is. False: stopped.
  bool Take(Function* next) ABSL_LOCKS_EXCLUDED(mu_);
  // False: none was ready.
  bool RunSources() ABSL_LOCKS_EXCLUDED(mu_);
  bool stopped() ABSL_LOCKS_EXCLUDED(mu_);
  void Sleep() ABSL_LOCKS_EXCLUDED(mu_);
  // For a strand that has had sources.
  void SleepWithSources() ABSL_LOCKS_EXCLUDED(mu_);
  // Until the first timer.
  absl::Duration IdleTimeLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Used by the strand alone.
  std::vector<std::weak_ptr<StrandSource>> sources_;
  bool had_sources_ = false;
  // While it sleeps. Members, so that a steady step does not allocate.
  std::vector<std::shared_ptr<StrandSource>> held_;
  std::vector<pollfd> waits_;

  Mutex mu_;
  CondVar changed_;
  int wake_fd_ ABSL_GUARDED_BY(mu_) = -1;  // an eventfd, from the first source on
  bool asleep_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Function> ready_ ABSL_GUARDED_BY(mu_);
  // By due time and order of posting.
  std::map<std::pair<absl::Duration, int64_t>, Function> timed_ ABSL_GUARDED_BY(mu_);
  int64_t next_timer_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_STRAND_STRAND_H_
