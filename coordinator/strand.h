// One thread that runs tasks one after another, and timers on its own clock.
#ifndef CAPSTAN_COORDINATOR_STRAND_H_
#define CAPSTAN_COORDINATOR_STRAND_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <thread>

#include "absl/time/time.h"
#include "services/sync/mutex.h"

namespace capstan::coordinator {

class Strand {
 public:
  // `after_batch` is run on the strand after every round: after all tasks that waited together, and
  // the timers that were due.
  explicit Strand(std::function<void()> after_batch = [] {});
  // Stop().
  ~Strand();
  Strand(const Strand&) = delete;
  Strand& operator=(const Strand&) = delete;

  // Runs `task` on the strand, after what was posted before. Any thread. Tasks are few: whoever
  // posts has one request or one message under way. After Stop it is run never.
  void Post(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mu_);

  // The same, but nobody waits for it: it is run with what else comes within kSoon. To wake a thread
  // for every one of a thousand heartbeats a second costs more than to handle them.
  static constexpr absl::Duration kSoon = absl::Milliseconds(5);
  void PostSoon(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mu_);

  // Runs `task` on the strand at `when`, or soon after. On the strand only.
  void CallAt(absl::Duration when, std::function<void()> task);

  // Runs what was posted and ends the thread; timers that are not due are dropped. Not on the
  // strand.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  bool OnStrand() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const std::function<void()> after_batch_;
  std::multimap<absl::Duration, std::function<void()>> timers_;  // of the thread alone

  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  absl::Duration run_at_ ABSL_GUARDED_BY(mu_) =
      absl::InfiniteDuration();  // the first of tasks_ wants to be run
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_STRAND_H_
