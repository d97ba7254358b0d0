#include "coordinator/file_threads.h"

#include <limits>
#include <utility>

namespace capstan::coordinator {

FileThreads::~FileThreads() { Stop(); }

void FileThreads::Post(const std::string& key, std::function<void()> work) {
  (void)PostUpTo(std::numeric_limits<size_t>::max(), key, std::move(work));
}

bool FileThreads::TryPost(const std::string& key, std::function<void()> work) {
  return PostUpTo(kMaxWaiting, key, std::move(work));
}

bool FileThreads::PostUpTo(size_t most_waiting, const std::string& key,
                           std::function<void()> work) {
  std::vector<std::thread> ended;
  {
    MutexLock lock(mu_);
    if (stopping_) return false;
    const auto [line, fresh] = lines_.try_emplace(key);
    if (line->second.waiting.size() >= most_waiting) return false;
    ended.swap(ended_);
    line->second.waiting.push_back(std::move(work));
    if (fresh) line->second.thread = std::thread([this, key] { Run(key); });
  }
  for (std::thread& thread : ended) thread.join();  // at its last instruction
  return true;
}

void FileThreads::Stop() {
  std::vector<std::thread> ended;
  {
    MutexLock lock(mu_);
    stopping_ = true;
    while (!lines_.empty()) changed_.Wait(mu_);
    ended.swap(ended_);
  }
  for (std::thread& thread : ended) thread.join();
}

void FileThreads::Run(const std::string& key) {
  for (;;) {
    std::function<void()> work;
    {
      MutexLock lock(mu_);
      const auto line = lines_.find(key);
      if (stopping_ || line->second.waiting.empty()) {
        ended_.push_back(std::move(line->second.thread));
        lines_.erase(line);
        changed_.NotifyAll();
        return;
      }
      work = std::move(line->second.waiting.front());
      line->second.waiting.pop_front();
    }
    work();
  }
}

}  // namespace capstan::coordinator
