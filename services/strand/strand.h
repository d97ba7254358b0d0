// A strand: functions that run one after another, in the order in which they were posted.
//
// Everything of one task but its devices' arithmetic runs on one strand, so its parts need no
// locks. The simulation has a strand of its own with a virtual clock.
#ifndef CAPSTAN_SERVICES_STRAND_STRAND_H_
#define CAPSTAN_SERVICES_STRAND_STRAND_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "services/sync/mutex.h"

namespace capstan::services {

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
};

// A strand on the thread that calls Run.
class StrandLoop : public Strand {
 public:
  void Post(Function function) override ABSL_LOCKS_EXCLUDED(mu_);
  void PostAfter(absl::Duration delay, Function function) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Duration Now() const override;

  // Runs functions until Stop. Once; by one thread.
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Run returns after the function under way; what is left is dropped, later posts too.
  // Thread-safe.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Mutex mu_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Function> ready_ ABSL_GUARDED_BY(mu_);
  // By due time and order of posting.
  std::map<std::pair<absl::Duration, int64_t>, Function> timed_ ABSL_GUARDED_BY(mu_);
  int64_t next_timer_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_STRAND_STRAND_H_
