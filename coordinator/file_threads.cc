#include "coordinator/file_threads.h"

#include <limits>
#include <system_error>
#include <utility>

#include "services/clock/clock.h"
#include "services/logging/log.h"

namespace capstan::coordinator {

FileThreads::~FileThreads() { Stop(); }

bool FileThreads::Post(const std::string& key, std::function<void()> work) {
  return PostUpTo(std::numeric_limits<size_t>::max(), key, std::move(work));
}

bool FileThreads::TryPost(const std::string& key, std::function<void()> work) {
  return PostUpTo(options_.max_waiting, key, std::move(work));
}

bool FileThreads::PostUpTo(size_t most_waiting, const std::string& key,
                           std::function<void()> work) {
  std::vector<std::thread> ended;
  {
    MutexLock lock(mu_);
    if (stopping_) return false;
    const auto line = lines_.try_emplace(key).first;
    if (line->second.waiting.size() >= most_waiting) return false;
    line->second.waiting.push_back(std::move(work));
    if (line->second.threads < options_.threads && !StartThread(key) && line->second.threads == 0) {
      work = std::move(line->second.waiting.back());  // destroyed after the lock is released
      lines_.erase(line);
      return false;
    }
    ended.swap(ended_);
  }
  for (std::thread& thread : ended) thread.join();  // they are at their last instruction
  return true;
}

bool FileThreads::StartThread(const std::string& key) {
  std::function<void()> run = [this, key] { Run(key); };
  try {
    std::thread thread =
        options_.make_thread ? options_.make_thread(std::move(run)) : std::thread(std::move(run));
    const std::thread::id id = thread.get_id();
    running_.emplace(id, std::move(thread));
  } catch (const std::system_error& error) {
    services::Log(services::kWarning, "no_thread_for_files")
        .Kv("key", key)
        .Kv("error", error.what())
        .Limit("no_thread_for_files");
    return false;
  }
  ++lines_[key].threads;
  return true;
}

bool FileThreads::Stop(absl::Duration patience) {
  const absl::Duration deadline = MonotonicNow() + patience;
  std::vector<std::thread> ended;
  bool over = false;
  {
    MutexLock lock(mu_);
    stopping_ = true;
    while (!lines_.empty() && !over) {
      over = changed_.WaitWithTimeout(mu_, deadline - MonotonicNow()) && MonotonicNow() >= deadline;
    }
    over = !lines_.empty();
    ended.swap(ended_);
  }
  for (std::thread& thread : ended) thread.join();
  return !over;
}

void FileThreads::Run(const std::string& key) {
  for (;;) {
    std::function<void()> work;
    std::deque<std::function<void()>> dropped;  // destroyed without the lock: may wait, too
    {
      MutexLock lock(mu_);
      const auto line = lines_.find(key);
      std::deque<std::function<void()>>& waiting = line->second.waiting;
      if (waiting.empty()) {
        const auto self = running_.find(std::this_thread::get_id());
        ended_.push_back(std::move(self->second));
        running_.erase(self);
        if (--line->second.threads == 0) lines_.erase(line);
        changed_.NotifyAll();
        return;
      }
      if (stopping_) {
        dropped.swap(waiting);
      } else {
        work = std::move(waiting.front());
        waiting.pop_front();
      }
    }
    if (work) work();
  }
}

}  // namespace capstan::coordinator
