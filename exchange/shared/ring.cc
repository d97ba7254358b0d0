#include "exchange/shared/ring.h"

#include <algorithm>
#include <cstring>

#include "services/check/check.h"

namespace capstan::exchange::shared {

RingResult RingWriter::HasRoom(size_t message_bytes) const {
  const uint64_t used = written_ - control_.read.load(std::memory_order_seq_cst);
  if (used > bytes_.size()) return RingResult::kBroken;
  return RingBytes(message_bytes) <= bytes_.size() - used ? RingResult::kDone
                                                          : RingResult::kNothing;
}

void RingWriter::Append(absl::string_view piece, uint64_t at) {
  while (!piece.empty()) {
    const size_t offset = at & (bytes_.size() - 1);
    const size_t count = std::min(piece.size(), bytes_.size() - offset);
    std::memcpy(bytes_.data() + offset, piece.data(), count);
    piece.remove_prefix(count);
    at += count;
  }
}

RingResult RingWriter::Write(wire::Pieces message) {
  const size_t size = wire::TotalBytes(message);
  if (RingBytes(size) > bytes_.size()) return RingResult::kTooLong;
  RingResult room = HasRoom(size);
  if (room == RingResult::kNothing) {
    // The reader looks at wants_room after it has read, so one of the two sees the other.
    control_.wants_room.store(1, std::memory_order_seq_cst);
    room = HasRoom(size);
  }
  if (room != RingResult::kDone) return room;
  control_.wants_room.store(0, std::memory_order_relaxed);
  const uint64_t length = size;
  Append({reinterpret_cast<const char*>(&length), sizeof(length)}, written_);
  uint64_t at = written_ + sizeof(length);
  for (const absl::string_view piece : message) {
    Append(piece, at);
    at += piece.size();
  }
  written_ += RingBytes(size);
  control_.written.store(written_, std::memory_order_seq_cst);
  return RingResult::kDone;
}

RingResult RingReader::Front(std::vector<absl::string_view>* pieces) {
  pieces->clear();
  const uint64_t there = control_.written.load(std::memory_order_acquire) - read_;
  if (there == 0) return RingResult::kNothing;
  if (there > bytes_.size() || there < sizeof(uint64_t) || there % 8 != 0) {
    return RingResult::kBroken;
  }
  const uint64_t mask = bytes_.size() - 1;
  uint64_t length = 0;  // its 8 bytes do not wrap, as everything here is a multiple of 8
  std::memcpy(&length, bytes_.data() + (read_ & mask), sizeof(length));
  if (length > wire::kMaxMessageBytes || RingBytes(length) > there) return RingResult::kBroken;
  front_bytes_ = RingBytes(length);
  const uint64_t begin = read_ + sizeof(length);
  for (uint64_t at = 0; at < length;) {
    const uint64_t offset = (begin + at) & mask;
    uint64_t count = std::min(length - at, bytes_.size() - offset);
    const char* from = bytes_.data() + offset;
    if (at < kCopied) {
      count = std::min(count, kCopied - at);
      std::memcpy(copied_.data() + at, from, count);
      from = copied_.data() + at;
    }
    pieces->emplace_back(from, count);
    at += count;
  }
  return RingResult::kDone;
}

bool RingReader::Pop() {
  CAPSTAN_CHECK(front_bytes_ > 0);
  read_ += front_bytes_;
  front_bytes_ = 0;
  control_.read.store(read_, std::memory_order_seq_cst);
  if (control_.wants_room.load(std::memory_order_seq_cst) == 0) return false;
  // Not for every message: a writer that is woken for a little room soon sleeps again.
  const uint64_t used = control_.written.load(std::memory_order_relaxed) - read_;
  return used <= bytes_.size() / 2;
}

}  // namespace capstan::exchange::shared
