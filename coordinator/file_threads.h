// Work on files, by key: pieces of one key one after the other, those of different keys at once. A
// disk that hangs so holds up nobody but the jobs that lie on it.
//
// A key has a thread while it has work. Thread-safe.
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
#include "services/sync/mutex.h"

namespace capstan::coordinator {

class FileThreads {
 public:
  FileThreads() = default;
  // Stop().
  ~FileThreads();
  FileThreads(const FileThreads&) = delete;
  FileThreads& operator=(const FileThreads&) = delete;

  // More than so many waiting pieces of a key are refused by TryPost.
  static constexpr size_t kMaxWaiting = 16;

  // After Stop: dropped.
  void Post(const std::string& key, std::function<void()> work) ABSL_LOCKS_EXCLUDED(mu_);
  // False: too much of this key is waiting, or Stop was called; `work` is dropped.
  bool TryPost(const std::string& key, std::function<void()> work) ABSL_LOCKS_EXCLUDED(mu_);
  // Finishes what is under way, drops the rest. Not from a piece of work.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Line {
    std::deque<std::function<void()>> waiting;
    std::thread thread;
  };

  bool PostUpTo(size_t most_waiting, const std::string& key, std::function<void()> work)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Run(const std::string& key) ABSL_LOCKS_EXCLUDED(mu_);

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Line> lines_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> ended_ ABSL_GUARDED_BY(mu_);  // to be joined
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_FILE_THREADS_H_
