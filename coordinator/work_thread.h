// Runs tasks one after another on one thread, and timers on its own clock.
#ifndef CAPSTAN_COORDINATOR_WORK_THREAD_H_
#define CAPSTAN_COORDINATOR_WORK_THREAD_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <thread>

#include "absl/time/time.h"
#include "services/sync/mutex.h"

namespace capstan::coordinator {

class WorkThread {
 public:
  // `after_batch` runs on the strand after every round, that is, after all tasks that waited
  // together and the timers that were due.
  explicit WorkThread(std::function<void()> after_batch = [] {});
  // Calls Stop().
  ~WorkThread();
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  // Runs `task` on the strand, after the tasks posted before it. Any thread may call it. The queue
  // stays short because each caller has at most one request in flight. After Stop, tasks are
  // dropped.
  void Post(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mu_);

  // The same for a task that nobody waits for: it runs with the tasks that arrive within kSoon. To
  // wake a thread for each of a thousand heartbeats a second would cost more than handling them.
  static constexpr absl::Duration kSoon = absl::Milliseconds(5);
  void PostSoon(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mu_);

  // Runs `task` on the strand at `when` or soon after. Strand only.
  void CallAt(absl::Duration when, std::function<void()> task);

  // Runs what was posted and ends the thread. Drops timers that are not due. Not on the strand.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  bool OnStrand() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const std::function<void()> after_batch_;
  std::multimap<absl::Duration, std::function<void()>> timers_;  // used only by the thread

  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  absl::Duration run_at_ ABSL_GUARDED_BY(mu_) =
      absl::InfiniteDuration();  // when the first of tasks_ should run
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_WORK_THREAD_H_
