// Converts between grpc::ByteBuffer and pieces, without copying a payload.
//
// Threads: use an object from one thread at a time. A payload's owner may be released on any gRPC
// thread.
#ifndef CAPSTAN_EXCHANGE_WIRE_BYTE_BUFFER_H_
#define CAPSTAN_EXCHANGE_WIRE_BYTE_BUFFER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "exchange/wire/frame_codec.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace capstan::exchange::wire {

// Holds the slices of a received message. Views into it are valid while it lives.
class ReceivedBytes {
 public:
  // Takes the slices of `buffer` by reference count. InvalidArgument: gRPC cannot open the buffer.
  static absl::StatusOr<ReceivedBytes> From(const grpc::ByteBuffer& buffer);

  ReceivedBytes() = default;
  // Moving keeps all views valid.
  ReceivedBytes(ReceivedBytes&&) = default;
  ReceivedBytes& operator=(ReceivedBytes&&) = default;
  ReceivedBytes(const ReceivedBytes&) = delete;
  ReceivedBytes& operator=(const ReceivedBytes&) = delete;

  Pieces pieces() const { return pieces_; }

 private:
  std::vector<grpc::Slice> slices_;
  std::vector<absl::string_view> pieces_;
};

// `prefix`, which is small and copied, followed by the payload, which is referenced.
grpc::ByteBuffer MakeByteBuffer(absl::string_view prefix, absl::Span<const OutgoingBytes> payload);

// A small message, but not a frame, encoded by protobuf with its check for this lineage.
grpc::ByteBuffer MakeByteBuffer(v1::ExchangeRequest message, int64_t lineage);
grpc::ByteBuffer MakeByteBuffer(v1::ExchangeResponse message, int64_t lineage);

}  // namespace capstan::exchange::wire

#endif  // CAPSTAN_EXCHANGE_WIRE_BYTE_BUFFER_H_
