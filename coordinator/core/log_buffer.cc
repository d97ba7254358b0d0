#include "coordinator/core/log_buffer.h"

#include <utility>

namespace capstan::coordinator::core {

int64_t LogBuffer::SizeOf(const job::v1::LogLine& line) {
  constexpr int64_t kOverhead = 64;  // of the message itself
  return kOverhead +
         static_cast<int64_t>(line.host().size() + line.level().size() + line.text().size());
}

LogBuffer::LogBuffer(const LogBuffer& other)
    : max_lines_(other.max_lines_),
      max_bytes_(other.max_bytes_),
      lines_(other.lines_),
      first_(other.first_),
      bytes_(other.bytes_),
      lost_(other.lost_) {}

void LogBuffer::Grow(int64_t bytes) {
  bytes_ += bytes;
  if (sum_ != nullptr) *sum_ += bytes;
}

void LogBuffer::CountIn(int64_t* sum) {
  if (sum_ != nullptr) *sum_ -= bytes_;
  sum_ = sum;
  if (sum_ != nullptr) *sum_ += bytes_;
}

void LogBuffer::DropOldest() {
  Grow(-SizeOf(lines_.front()));
  lines_.pop_front();
  ++first_;
}

void LogBuffer::Append(job::v1::LogLine line) {
  if (static_cast<int64_t>(line.text().size()) > kMaxLogTextBytes) {
    size_t cut = kMaxLogTextBytes;
    // Not inside a UTF-8 sequence: the field is a string and must stay one.
    while (cut > 0 && (static_cast<unsigned char>(line.text()[cut]) & 0xC0) == 0x80) --cut;
    line.mutable_text()->resize(cut);
  }
  Grow(SizeOf(line));
  lines_.push_back(std::move(line));
  if (appended_ != nullptr) appended_->insert(name_);
  while (!lines_.empty() &&
         (static_cast<int64_t>(lines_.size()) > max_lines_ || bytes_ > max_bytes_)) {
    DropOldest();
  }
}

void LogBuffer::DropTo(int64_t bytes) {
  while (!lines_.empty() && bytes_ > bytes) DropOldest();
}

const job::v1::LogLine* LogBuffer::Find(int64_t number) const {
  return number >= first_ && number < next() ? &lines_[number - first_] : nullptr;
}

}  // namespace capstan::coordinator::core
