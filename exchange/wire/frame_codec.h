// Encodes ExchangeRequest and ExchangeResponse as a small protobuf message and a payload outside of
// it. Tensor bytes are never copied into a protobuf message.
//
// On the wire, a frame is an ordinary protobuf message whose `payload` comes last. So any protobuf
// reader understands it, and this code understands the bytes of any protobuf writer:
//
//   [tag 15][length of Frame] [fields 1 to 13] [check] [tag 15][length of payload] [payload]
//
// Messages other than Frame and WeightFrame are small. They are encoded by protobuf, with the check
// as their last field.
//
// The check (field 14) is the CRC32C of the fields before it, as they are on the wire, and then of
// the lineage: 8 bytes, little-endian, 0 for Hello and HelloReply. For a frame it covers step,
// lane block, first chunk and the checksums of the chunks, so a payload is accepted only under its
// own key. Its cost does not grow with the payload.
//
// This code is stricter than protobuf, so that nothing can follow a payload: a frame must be the
// only field of its message, and the payload the last field of the frame.
//
// Threads: pure functions; use a PayloadReader from one thread. No gRPC here; see byte_buffer.h.
#ifndef CAPSTAN_EXCHANGE_WIRE_FRAME_CODEC_H_
#define CAPSTAN_EXCHANGE_WIRE_FRAME_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "capstan/param_store/v1/param_store.pb.h"

namespace capstan::exchange {
namespace v1 = param_store::v1;
}  // namespace capstan::exchange

namespace capstan::exchange::wire {

inline constexpr size_t kMaxPayloadBytes = size_t{1} << 20;  // of one frame
inline constexpr size_t kMaxHeaderBytes = size_t{64} << 10;  // of a frame: all but the payload
// The exchange of this code (Hello.speaks): every message has a check. Version 0 had none.
inline constexpr int32_t kSpeaks = 1;
// The limit of any message, with or without a payload, and the receive limit of channels and servers
// that carry Exchange.
inline constexpr size_t kMaxMessageBytes = kMaxPayloadBytes + kMaxHeaderBytes;

// Bytes in order, cut at any place and with any alignment. Borrowed.
using Pieces = absl::Span<const absl::string_view>;

// A part of a payload to be sent. The bytes must not change until the last reference to `owner` is
// gone. gRPC holds a reference until it has written the bytes and releases it on any thread. A
// custom deleter of `owner` tells the sender; it must not block.
struct OutgoingBytes {
  absl::string_view bytes;
  std::shared_ptr<const void> owner;
};

template <typename Message>
struct Decoded {
  Message message;                         // frame or weights with an empty `payload`
  std::vector<absl::string_view> payload;  // views into the given pieces; empty for other messages
  size_t payload_bytes = 0;                // a multiple of 4, at most kMaxPayloadBytes
  uint32_t sum = 0;                        // CRC32C of the bytes before the check

  // Whether the message has a check that is right for this lineage.
  bool Intact(int64_t lineage) const;
};

// InvalidArgument names the error: bytes that protobuf refuses, an empty message, a length that
// does not fit, or a payload that is too long, not a multiple of 4, or not last.
absl::StatusOr<Decoded<v1::ExchangeRequest>> DecodeRequest(Pieces pieces);
absl::StatusOr<Decoded<v1::ExchangeResponse>> DecodeResponse(Pieces pieces);

// The bytes before the payload of a message that contains only this frame, with a check for this
// lineage. `frame.payload` must be empty and its check not set. payload_bytes is at most
// kMaxPayloadBytes.
std::string EncodePrefix(const v1::Frame& frame, size_t payload_bytes, int64_t lineage);
std::string EncodePrefix(const v1::WeightFrame& frame, size_t payload_bytes, int64_t lineage);
// The same for a frame as it is, with its own check or none.
std::string EncodePrefix(const v1::Frame& frame, size_t payload_bytes);
std::string EncodePrefix(const v1::WeightFrame& frame, size_t payload_bytes);

// Sets the check of a message as protobuf will write it, with any payload inside. For messages that
// are sent without EncodePrefix.
void SetCheck(v1::ExchangeRequest* message, int64_t lineage);
void SetCheck(v1::ExchangeResponse* message, int64_t lineage);

// Reads a payload chunk by chunk.
class PayloadReader {
 public:
  // Borrows the pieces.
  explicit PayloadReader(Pieces pieces) : pieces_(pieces) {}

  // Sets *out to the views of the next size_bytes bytes. Returns false and empties *out if fewer
  // are left.
  bool Next(size_t size_bytes, std::vector<absl::string_view>* out);
  bool AtEnd() const;

 private:
  Pieces pieces_;
  size_t piece_ = 0;   // of the next byte
  size_t offset_ = 0;  // in that piece
};

size_t TotalBytes(Pieces pieces);

// CRC32C of all pieces together.
uint32_t Crc32cOf(Pieces pieces);

// Copies little-endian floats. TotalBytes(pieces) must be 4 * out.size(). Adds to copied_bytes.
void CopyFloats(Pieces pieces, absl::Span<float> out);

// For tests: the payload bytes that this process has copied from or into messages since its start,
// and those that it has decoded or put into messages. At most one copy is promised on each side.
struct CopyCount {
  int64_t copied_bytes = 0;
  int64_t exchanged_bytes = 0;
};
CopyCount GetCopyCount();
// Code that copies a payload without CopyFloats must report it here.
void CountCopied(size_t bytes);

}  // namespace capstan::exchange::wire

#endif  // CAPSTAN_EXCHANGE_WIRE_FRAME_CODEC_H_
