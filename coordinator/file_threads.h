// Runs work on files, by key. Work of one key runs one piece after the other (or a few at once, see
// Options), and work of different keys runs at the same time. A hung disk blocks only the jobs
// stored on it.
//
// A key has threads only while it has work. Thread-safe.
#ifndef CAPSTAN_COORDINATOR_FILE_THREADS_H_
#define CAPSTAN_COORDINATOR_FILE_THREADS_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "services/sync/mutex.h"

namespace capstan::coordinator {

class FileThreads {
 public:
  // The default limit of TryPost for the waiting pieces of a key.
  static constexpr size_t kMaxWaiting = 16;

  struct Options {
    size_t threads = 1;                // per key; with more than one, pieces have no order
    size_t max_waiting = kMaxWaiting;  // per key; for TryPost
    // Makes a thread. Throws std::system_error if the system gives none. For tests.
    std::function<std::thread(std::function<void()>)> make_thread;
  };

  FileThreads() : FileThreads(Options()) {}
  explicit FileThreads(Options options) : options_(std::move(options)) {}
  // Calls Stop() without a limit.
  ~FileThreads();
  FileThreads(const FileThreads&) = delete;
  FileThreads& operator=(const FileThreads&) = delete;

  // False: Stop was called, or the key has no thread and the system gives none. `work` is dropped
  // then.
  [[nodiscard]] bool Post(const std::string& key, std::function<void()> work)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Also false if too many pieces of this key wait.
  [[nodiscard]] bool TryPost(const std::string& key, std::function<void()> work)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Finishes pieces in progress and drops the rest. False: some work is still in progress after
  // `patience`, so the process must end without destroying what that work uses. Do not call it from
  // a piece of work.
  bool Stop(absl::Duration patience = absl::InfiniteDuration()) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Line {
    std::deque<std::function<void()>> waiting;
    size_t threads = 0;
  };

  bool PostUpTo(size_t most_waiting, const std::string& key, std::function<void()> work)
      ABSL_LOCKS_EXCLUDED(mu_);
  // False: the system gives no thread.
  bool StartThread(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run(const std::string& key) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Line> lines_ ABSL_GUARDED_BY(mu_);
  std::map<std::thread::id, std::thread> running_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> ended_ ABSL_GUARDED_BY(mu_);  // to be joined
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_FILE_THREADS_H_
