// Work on files, by key: pieces of one key one after the other (or a few at once, Options), those of
// different keys at once. A disk that hangs so holds up nobody but the jobs that lie on it.
//
// A key has threads while it has work. Thread-safe.
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
  // More than so many waiting pieces of a key are refused by TryPost, where Options say nothing.
  static constexpr size_t kMaxWaiting = 16;

  struct Options {
    size_t threads = 1;                // of a key at most; with more than one, pieces have no order
    size_t max_waiting = kMaxWaiting;  // of a key; for TryPost
    // Makes a thread; throws std::system_error where the system gives none. For tests.
    std::function<std::thread(std::function<void()>)> make_thread;
  };

  FileThreads() : FileThreads(Options()) {}
  explicit FileThreads(Options options) : options_(std::move(options)) {}
  // Stop(), however long that takes.
  ~FileThreads();
  FileThreads(const FileThreads&) = delete;
  FileThreads& operator=(const FileThreads&) = delete;

  // False: Stop was called, or the key has no thread and the system gives none; `work` is dropped.
  [[nodiscard]] bool Post(const std::string& key, std::function<void()> work)
      ABSL_LOCKS_EXCLUDED(mu_);
  // False also: too much of this key is waiting.
  [[nodiscard]] bool TryPost(const std::string& key, std::function<void()> work)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Finishes what is under way, drops the rest. False: `patience` was over first, so something is
  // under way still, and whoever ends the process must not take down what that work uses. Not from
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
