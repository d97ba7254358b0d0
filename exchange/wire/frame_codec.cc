#include "exchange/wire/frame_codec.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "training/codec/crc32c.h"

namespace capstan::exchange::wire {
namespace {

constexpr uint8_t kPayloadTag = (15 << 3) | 2;  // field 15, length-delimited; frame and payload
constexpr uint8_t kCheckTag = (14 << 3) | 5;    // field 14, fixed32; in all messages
constexpr size_t kCheckBytes = 5;               // with its tag

enum WireType { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

std::atomic<int64_t> g_copied_bytes{0};     // only for tests
std::atomic<int64_t> g_exchanged_bytes{0};  // likewise

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("exchange message: ", what));
}

// Reads the pieces from front to back.
class Cursor {
 public:
  explicit Cursor(Pieces pieces) : pieces_(pieces) {}

  size_t position() const { return position_; }

  bool ReadByte(uint8_t* byte) {
    if (!SkipEmpty()) return false;
    *byte = static_cast<uint8_t>(pieces_[piece_][offset_]);
    ++offset_;
    ++position_;
    return true;
  }

  // False if the bytes end or the varint is longer than 10 bytes.
  bool ReadVarint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      uint8_t byte;
      if (!ReadByte(&byte)) return false;
      *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  // Skips `count` bytes and passes each run of them to `take`. False if fewer are left.
  template <typename Take>
  bool Walk(size_t count, Take take) {
    while (count > 0) {
      if (!SkipEmpty()) return false;
      const size_t n = std::min(count, pieces_[piece_].size() - offset_);
      take(pieces_[piece_].substr(offset_, n));
      offset_ += n;
      position_ += n;
      count -= n;
    }
    return true;
  }
  bool Skip(uint64_t count) {
    if (count > kMaxMessageBytes) return false;
    return Walk(count, [](absl::string_view) {});
  }

 private:
  bool SkipEmpty() {
    while (piece_ < pieces_.size() && offset_ == pieces_[piece_].size()) {
      ++piece_;
      offset_ = 0;
    }
    return piece_ < pieces_.size();
  }

  Pieces pieces_;
  size_t piece_ = 0;
  size_t offset_ = 0;
  size_t position_ = 0;
};

std::string CopyOut(Cursor from, size_t count) {
  std::string out;
  out.reserve(count);
  CAPSTAN_CHECK(
      from.Walk(count, [&out](absl::string_view run) { out.append(run.data(), run.size()); }));
  return out;
}

// The CRC32C of `fields`. If `checked`, the last field must be the check and is left out. False:
// another field is the last.
bool SumOf(absl::string_view fields, bool checked, uint32_t* sum) {
  if (checked) {
    if (fields.size() < kCheckBytes ||
        static_cast<uint8_t>(fields[fields.size() - kCheckBytes]) != kCheckTag) {
      return false;
    }
    fields.remove_suffix(kCheckBytes);
  }
  *sum = training::Crc32c(fields);
  return true;
}

uint32_t WithLineage(uint32_t sum, int64_t lineage) {
  unsigned char bytes[8];
  for (int i = 0; i < 8; ++i) {
    bytes[i] = static_cast<unsigned char>(static_cast<uint64_t>(lineage) >> (8 * i));
  }
  return training::ExtendCrc32c(sum, bytes, sizeof(bytes));
}

// Splits the fields of a frame that ends with the message at `end`. `frame` is either type.
template <typename Frame>
absl::Status DecodeFrame(Cursor cursor, size_t end, Frame* frame,
                         std::vector<absl::string_view>* payload, size_t* payload_bytes,
                         uint32_t* sum) {
  const Cursor begin = cursor;
  size_t header_end = end;
  while (cursor.position() < end) {
    const size_t field_start = cursor.position();
    uint64_t tag;
    if (!cursor.ReadVarint(&tag) || tag > UINT32_MAX || (tag >> 3) == 0) return Bad("a bad tag");
    if (tag == kPayloadTag) {
      uint64_t size;
      if (!cursor.ReadVarint(&size)) return Bad("a bad payload length");
      if (size > kMaxPayloadBytes) {
        return Bad(absl::StrCat("payload: ", size, " bytes, limit ", kMaxPayloadBytes));
      }
      if (size != end - cursor.position()) {
        return Bad(absl::StrCat("payload: ", size, " bytes, want the rest of the message, ",
                                end - cursor.position()));
      }
      if (size % sizeof(float) != 0) {
        return Bad(absl::StrCat("payload: ", size, " bytes, want a multiple of 4"));
      }
      header_end = field_start;
      *payload_bytes = size;
      cursor.Walk(size, [payload](absl::string_view run) { payload->push_back(run); });
      break;
    }
    uint64_t skip = 0;
    bool ok = true;
    switch (tag & 7) {
      case kVarint:
        ok = cursor.ReadVarint(&skip);
        skip = 0;
        break;
      case kFixed64:
        skip = 8;
        break;
      case kLength:
        ok = cursor.ReadVarint(&skip);
        break;
      case kFixed32:
        skip = 4;
        break;
      default:
        return Bad("a field of an unknown wire type");
    }
    if (!ok || !cursor.Skip(skip)) return Bad("a field that is cut off");
  }
  const size_t header_bytes = header_end - begin.position();
  if (header_bytes > kMaxHeaderBytes) {
    return Bad(absl::StrCat("header: ", header_bytes, " bytes, limit ", kMaxHeaderBytes));
  }
  const std::string header = CopyOut(begin, header_bytes);
  if (!frame->ParseFromString(header)) return Bad("the frame does not parse");
  // Bytes in shared memory may have changed since they were read above.
  if (!frame->payload().empty()) return Bad("a payload among the fields of the header");
  if (!SumOf(header, frame->has_check(), sum)) return Bad("the check is not the last field");
  return absl::OkStatus();
}

// The two messages differ only in the name of field 15.
v1::Frame& MutableFrame(v1::ExchangeRequest& m) { return *m.mutable_frame(); }
v1::WeightFrame& MutableFrame(v1::ExchangeResponse& m) { return *m.mutable_weights(); }
const v1::Frame& FrameOf(const v1::ExchangeRequest& m) { return m.frame(); }
const v1::WeightFrame& FrameOf(const v1::ExchangeResponse& m) { return m.weights(); }
bool HasFrame(const v1::ExchangeRequest& m) { return m.has_frame(); }
bool HasFrame(const v1::ExchangeResponse& m) { return m.has_weights(); }

template <typename Message>
absl::StatusOr<Decoded<Message>> Decode(Pieces pieces) {
  const size_t total = TotalBytes(pieces);
  if (total > kMaxMessageBytes) {
    return Bad(absl::StrCat(total, " bytes, limit ", kMaxMessageBytes));
  }
  Decoded<Message> decoded;
  Cursor cursor(pieces);
  uint8_t first;
  if (!cursor.ReadByte(&first)) return Bad("empty");
  if (first == kPayloadTag) {
    uint64_t size;
    if (!cursor.ReadVarint(&size)) return Bad("a bad frame length");
    if (size != total - cursor.position()) {
      return Bad(absl::StrCat("frame: ", size, " bytes, want the rest of the message, ",
                              total - cursor.position()));
    }
    absl::Status status = DecodeFrame(cursor, total, &MutableFrame(decoded.message),
                                      &decoded.payload, &decoded.payload_bytes, &decoded.sum);
    if (!status.ok()) return status;
    g_exchanged_bytes.fetch_add(static_cast<int64_t>(decoded.payload_bytes),
                                std::memory_order_relaxed);
    return decoded;
  }
  const std::string bytes = CopyOut(Cursor(pieces), total);
  if (!decoded.message.ParseFromString(bytes)) return Bad("does not parse");
  if (HasFrame(decoded.message)) return Bad("a frame beside other fields");
  if (decoded.message.message_case() == Message::MESSAGE_NOT_SET) return Bad("says nothing");
  if (!SumOf(bytes, decoded.message.has_check(), &decoded.sum)) {
    return Bad("the check is not the last field");
  }
  return decoded;
}

void AppendVarint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

void AppendCheck(std::string& out, uint32_t check) {
  out.push_back(static_cast<char>(kCheckTag));
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(check >> (8 * i)));
}

// `lineage` null: encodes the frame with its own check or none.
template <typename Frame>
std::string Prefix(const Frame& frame, size_t payload_bytes, const int64_t* lineage) {
  CAPSTAN_CHECK(frame.payload().empty());
  CAPSTAN_CHECK(payload_bytes <= kMaxPayloadBytes);
  std::string header = frame.SerializeAsString();
  if (lineage != nullptr) {
    CAPSTAN_CHECK(!frame.has_check());
    AppendCheck(header, WithLineage(training::Crc32c(header), *lineage));
  }
  std::string tail;
  if (payload_bytes > 0) {
    tail.push_back(static_cast<char>(kPayloadTag));
    AppendVarint(tail, payload_bytes);
  }
  std::string out;
  out.reserve(header.size() + 16);
  out.push_back(static_cast<char>(kPayloadTag));
  AppendVarint(out, header.size() + tail.size() + payload_bytes);
  out += header;
  out += tail;
  g_exchanged_bytes.fetch_add(static_cast<int64_t>(payload_bytes), std::memory_order_relaxed);
  return out;
}

// A hello contains the lineage, and its reader does not know it yet. So its check uses 0.
template <typename Message>
int64_t LineageOf(const Message& message, int64_t lineage) {
  return message.has_hello() ? 0 : lineage;
}

template <typename Message>
void SetCheckOf(Message* message, int64_t lineage) {
  if (HasFrame(*message)) {
    auto& frame = MutableFrame(*message);
    frame.clear_check();
    std::string payload;
    payload.swap(*frame.mutable_payload());
    const uint32_t sum = training::Crc32c(frame.SerializeAsString());
    payload.swap(*frame.mutable_payload());
    frame.set_check(WithLineage(sum, lineage));
    return;
  }
  message->clear_check();
  const uint32_t sum = training::Crc32c(message->SerializeAsString());
  message->set_check(WithLineage(sum, LineageOf(*message, lineage)));
}

}  // namespace

template <typename Message>
bool Decoded<Message>::Intact(int64_t lineage) const {
  const uint32_t want = WithLineage(sum, LineageOf(message, lineage));
  return HasFrame(message) ? FrameOf(message).has_check() && FrameOf(message).check() == want
                           : message.has_check() && message.check() == want;
}

template struct Decoded<v1::ExchangeRequest>;
template struct Decoded<v1::ExchangeResponse>;

void SetCheck(v1::ExchangeRequest* message, int64_t lineage) { SetCheckOf(message, lineage); }
void SetCheck(v1::ExchangeResponse* message, int64_t lineage) { SetCheckOf(message, lineage); }

absl::StatusOr<Decoded<v1::ExchangeRequest>> DecodeRequest(Pieces pieces) {
  return Decode<v1::ExchangeRequest>(pieces);
}

absl::StatusOr<Decoded<v1::ExchangeResponse>> DecodeResponse(Pieces pieces) {
  return Decode<v1::ExchangeResponse>(pieces);
}

std::string EncodePrefix(const v1::Frame& frame, size_t payload_bytes, int64_t lineage) {
  return Prefix(frame, payload_bytes, &lineage);
}

std::string EncodePrefix(const v1::WeightFrame& frame, size_t payload_bytes, int64_t lineage) {
  return Prefix(frame, payload_bytes, &lineage);
}

std::string EncodePrefix(const v1::Frame& frame, size_t payload_bytes) {
  return Prefix(frame, payload_bytes, nullptr);
}

std::string EncodePrefix(const v1::WeightFrame& frame, size_t payload_bytes) {
  return Prefix(frame, payload_bytes, nullptr);
}

bool PayloadReader::Next(size_t size_bytes, std::vector<absl::string_view>* out) {
  out->clear();
  while (size_bytes > 0) {
    if (AtEnd()) {
      out->clear();
      return false;
    }
    const absl::string_view piece = pieces_[piece_];
    const size_t n = std::min(size_bytes, piece.size() - offset_);
    if (n > 0) out->push_back(piece.substr(offset_, n));
    size_bytes -= n;
    offset_ += n;
    if (offset_ == piece.size()) {
      ++piece_;
      offset_ = 0;
    }
  }
  return true;
}

bool PayloadReader::AtEnd() const {
  size_t offset = offset_;
  for (size_t i = piece_; i < pieces_.size(); ++i) {
    if (pieces_[i].size() > offset) return false;
    offset = 0;
  }
  return true;
}

size_t TotalBytes(Pieces pieces) {
  size_t total = 0;
  for (const absl::string_view piece : pieces) total += piece.size();
  return total;
}

uint32_t Crc32cOf(Pieces pieces) {
  uint32_t crc = 0;
  for (const absl::string_view piece : pieces) {
    crc = training::ExtendCrc32c(crc, piece.data(), piece.size());
  }
  return crc;
}

void CopyFloats(Pieces pieces, absl::Span<float> out) {
  CAPSTAN_CHECK(TotalBytes(pieces) == out.size() * sizeof(float));
  char* to = reinterpret_cast<char*>(out.data());
  for (const absl::string_view piece : pieces) {
    if (piece.empty()) continue;
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
  CountCopied(out.size() * sizeof(float));
}

CopyCount GetCopyCount() {
  return {g_copied_bytes.load(std::memory_order_relaxed),
          g_exchanged_bytes.load(std::memory_order_relaxed)};
}

void CountCopied(size_t bytes) {
  g_copied_bytes.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
}

}  // namespace capstan::exchange::wire
