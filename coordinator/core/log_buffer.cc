#include "coordinator/core/log_buffer.h"

#include <utility>

namespace capstan::coordinator::core {

int64_t LogBuffer::SizeOf(const job::v1::LogLine& line) {
  constexpr int64_t kOverhead = 64;  // of the message itself
  return kOverhead +
         static_cast<int64_t>(line.host().size() + line.level().size() + line.text().size());
}

void LogBuffer::DropOldest() {
  bytes_ -= SizeOf(lines_.front());
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
  bytes_ += SizeOf(line);
  lines_.push_back(std::move(line));
  while (!lines_.empty() &&
         (static_cast<int64_t>(lines_.size()) > max_lines_ || bytes_ > max_bytes_)) {
    DropOldest();
  }
}

void LogBuffer::Clear() {
  while (!lines_.empty()) DropOldest();
}

const job::v1::LogLine* LogBuffer::Find(int64_t number) const {
  return number >= first_ && number < next() ? &lines_[number - first_] : nullptr;
}

}  // namespace capstan::coordinator::core
