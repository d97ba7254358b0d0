// ExchangeRequest and ExchangeResponse as {small protobuf message, payload outside}: tensor bytes
// are never copied into a protobuf message.
//
// On the wire a frame is an ordinary protobuf message whose `payload` comes last, so any protobuf
// reader understands it and any protobuf writer's bytes are understood here:
//
//   [tag 15][length of Frame] [fields 1 to 13] [check] [tag 15][length of payload] [payload]
//   |------------------- prefix: what EncodePrefix returns -----------------|
//
// Messages other than Frame and WeightFrame are small and go through protobuf as they are, with the
// check as their last field.
//
// The check (field 14) is the CRC32C of the fields before it, as they lie on the wire, and then of
// the lineage: 8 bytes, little-endian, 0 for Hello and HelloReply. For a frame it covers step, node,
// first chunk and the checksums of the chunks: a payload is right only under its own key. It costs
// nothing that grows with the payload.
//
// Stricter than protobuf, so that nothing can lie behind a payload: a frame is the only field of
// its message and its payload the last field of the frame.
//
// Threads: pure functions; PayloadReader is for one thread. No gRPC here; see byte_buffer.h.
#ifndef CAPSTAN_PARAM_STORE_WIRE_FRAME_CODEC_H_
#define CAPSTAN_PARAM_STORE_WIRE_FRAME_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "capstan/param_store/v1/param_store.pb.h"

namespace capstan::param_store::wire {

inline constexpr size_t kMaxPayloadBytes = size_t{1} << 20;  // of one frame
inline constexpr size_t kMaxHeaderBytes = size_t{64} << 10;  // everything but the payload
// What this code speaks (Hello.speaks): every message has a check. 0 spoke without.
inline constexpr int32_t kSpeaks = 1;
// The receive limit of a channel or server that carries Exchange.
inline constexpr size_t kMaxMessageBytes = kMaxPayloadBytes + kMaxHeaderBytes;

// Bytes in order, cut anywhere, aligned anyhow. Borrowed.
using Pieces = absl::Span<const absl::string_view>;

template <typename Message>
struct Decoded {
  Message message;                         // frame or weights with an empty `payload`
  std::vector<absl::string_view> payload;  // views into the pieces given; empty for other messages
  size_t payload_bytes = 0;                // a multiple of 4, at most kMaxPayloadBytes
  uint32_t sum = 0;                        // CRC32C of what lies before the check

  // Whether the message has a check, and it is right in this lineage.
  bool Intact(int64_t lineage) const;
};

// InvalidArgument, naming what is wrong: bytes that protobuf refuses, a message that says nothing,
// a length that does not fit, a payload that is too long, not a multiple of 4, or not last.
absl::StatusOr<Decoded<v1::ExchangeRequest>> DecodeRequest(Pieces pieces);
absl::StatusOr<Decoded<v1::ExchangeResponse>> DecodeResponse(Pieces pieces);

// The bytes before the payload of a message that holds nothing but this frame, with a check of this
// lineage. `frame.payload` is empty, its check not set; payload_bytes is at most kMaxPayloadBytes.
std::string EncodePrefix(const v1::Frame& frame, size_t payload_bytes, int64_t lineage);
std::string EncodePrefix(const v1::WeightFrame& frame, size_t payload_bytes, int64_t lineage);
// The same of a frame as it is, with the check that it has or none.
std::string EncodePrefix(const v1::Frame& frame, size_t payload_bytes);
std::string EncodePrefix(const v1::WeightFrame& frame, size_t payload_bytes);

// Sets the check of a message as protobuf will write it; a payload is inside it. For messages that
// are sent without EncodePrefix.
void SetCheck(v1::ExchangeRequest* message, int64_t lineage);
void SetCheck(v1::ExchangeResponse* message, int64_t lineage);

// Walks a payload chunk by chunk.
class PayloadReader {
 public:
  // Borrows the pieces.
  explicit PayloadReader(Pieces pieces) : pieces_(pieces) {}

  // Replaces *out by the views of the next size_bytes; false, with *out empty, where fewer are
  // left.
  bool Next(size_t size_bytes, std::vector<absl::string_view>* out);
  bool AtEnd() const;

 private:
  Pieces pieces_;
  size_t piece_ = 0;   // of the next byte
  size_t offset_ = 0;  // in that piece
};

size_t TotalBytes(Pieces pieces);

// CRC32C of all the pieces together.
uint32_t Crc32cOf(Pieces pieces);

// Copies little-endian floats; TotalBytes(pieces) == 4 * out.size(). Counted in copied_bytes().
void CopyFloats(Pieces pieces, absl::Span<float> out);

// For tests: payload bytes that this process has copied from or into messages since it started,
// and payload bytes that it has decoded or put into messages. At most one copy each side is
// promised.
struct CopyCount {
  int64_t copied_bytes = 0;
  int64_t exchanged_bytes = 0;
};
CopyCount GetCopyCount();
// Whoever copies a payload by other means than CopyFloats says so here.
void CountCopied(size_t bytes);

}  // namespace capstan::param_store::wire

#endif  // CAPSTAN_PARAM_STORE_WIRE_FRAME_CODEC_H_
