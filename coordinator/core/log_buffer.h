// The newest log lines of one job, bounded in number and bytes.
#ifndef CAPSTAN_COORDINATOR_CORE_LOG_BUFFER_H_
#define CAPSTAN_COORDINATOR_CORE_LOG_BUFFER_H_

#include <cstdint>
#include <deque>
#include <set>
#include <string>

#include "capstan/job/v1/job_service.pb.h"

namespace capstan::coordinator::core {

inline constexpr int64_t kMaxLogTextBytes = 8 * 1024;

// Lines are numbered from 0 in the order in which they came; the oldest are dropped and counted.
// Not thread-safe.
class LogBuffer {
 public:
  LogBuffer(int64_t max_lines, int64_t max_bytes) : max_lines_(max_lines), max_bytes_(max_bytes) {}
  ~LogBuffer() { CountIn(nullptr); }
  LogBuffer(const LogBuffer& other);  // counts and tells nowhere
  LogBuffer& operator=(const LogBuffer&) = delete;

  // Keeps the bytes of this one in `*sum`, which is that of several and outlives them.
  void CountIn(int64_t* sum);

  // Each line puts `name` among `*appended`, which is that of several and outlives them.
  void TellAppends(std::set<std::string>* appended, const std::string& name) {
    appended_ = appended;
    name_ = name;
  }

  // A text longer than kMaxLogTextBytes is cut.
  void Append(job::v1::LogLine line);
  // Lines that never came here: their sender dropped them.
  void CountLost(int64_t lines) { lost_ += lines; }
  void Clear() { DropTo(0); }
  // The oldest go until at most so many bytes are left.
  void DropTo(int64_t bytes);

  // The line with this number, or null: dropped, or not yet there. Valid until the next change.
  const job::v1::LogLine* Find(int64_t number) const;

  int64_t next() const { return first_ + static_cast<int64_t>(lines_.size()); }
  int64_t dropped() const { return first_; }
  int64_t lost() const { return lost_; }
  int64_t bytes() const { return bytes_; }

 private:
  static int64_t SizeOf(const job::v1::LogLine& line);
  void DropOldest();
  void Grow(int64_t bytes);

  const int64_t max_lines_;
  const int64_t max_bytes_;
  std::deque<job::v1::LogLine> lines_;
  int64_t first_ = 0;  // number of lines_.front()
  int64_t bytes_ = 0;
  int64_t* sum_ = nullptr;
  std::set<std::string>* appended_ = nullptr;
  std::string name_;
  int64_t lost_ = 0;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_LOG_BUFFER_H_
