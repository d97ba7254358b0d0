// A ring of messages in memory that two processes share: one of them writes, the other reads.
//
// A message is its length (8 bytes) and its bytes, padded to a multiple of 8. The counters
// of bytes only grow; each is written by one side. What the other side writes is never trusted: a
// counter or length that cannot be is kBroken, and the bytes may change while they are read.
//
// Threads: RingWriter and RingReader each from one thread at a time, of whichever process.
#ifndef CAPSTAN_EXCHANGE_SHARED_RING_H_
#define CAPSTAN_EXCHANGE_SHARED_RING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "exchange/wire/frame_codec.h"

namespace capstan::exchange::shared {

// The counters of a ring, in the shared memory. All zero at first.
struct RingControl {
  // Of the writer.
  alignas(64) std::atomic<uint64_t> written{0};
  std::atomic<uint32_t> wants_room{0};
  // Of the reader.
  alignas(64) std::atomic<uint64_t> read{0};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

enum class RingResult { kDone, kNothing, kTooLong, kBroken };

// The bytes that a message of this size takes.
constexpr uint64_t RingBytes(size_t message_bytes) {
  return sizeof(uint64_t) + (message_bytes + 7) / 8 * 8;
}

class RingWriter {
 public:
  // `bytes` is a power of two. Borrows both.
  RingWriter(RingControl& control, absl::Span<char> bytes) : control_(control), bytes_(bytes) {}

  // kNothing: there is no room yet; the reader finds wants_room set, and tells once there is.
  // kTooLong: it is longer than the ring.
  RingResult Write(wire::Pieces message);
  // Whether Write would find room for it.
  RingResult HasRoom(size_t message_bytes) const;

 private:
  void Append(absl::string_view piece, uint64_t at);

  RingControl& control_;
  const absl::Span<char> bytes_;
  uint64_t written_ = 0;
};

class RingReader {
 public:
  // The first bytes of a message are copied, so that what is decided by a header cannot change.
  static constexpr size_t kCopied = 4096;

  RingReader(RingControl& control, absl::Span<const char> bytes)
      : control_(control), bytes_(bytes) {}

  // The oldest message. The pieces are valid until Pop. kNothing: there is none.
  RingResult Front(std::vector<absl::string_view>* pieces);
  // Whether there is a message, or something that is none.
  bool Ready() const { return control_.written.load(std::memory_order_seq_cst) != read_; }
  // Gives back the room of the message at the front. True: the writer was waiting, and at least half
  // of the ring is free.
  bool Pop();
  // Bytes that Pop has given back.
  uint64_t read() const { return read_; }

 private:
  RingControl& control_;
  const absl::Span<const char> bytes_;
  uint64_t read_ = 0;
  uint64_t front_bytes_ = 0;  // of the message at the front, once Front has found it
  std::array<char, kCopied> copied_;
};

}  // namespace capstan::exchange::shared

#endif  // CAPSTAN_EXCHANGE_SHARED_RING_H_
