// grpc::ByteBuffer <-> pieces, without a copy of a payload.
//
// Threads: objects are for one thread at a time; a payload's owner may be let go on any gRPC
// thread.
#ifndef CAPSTAN_PARAM_STORE_WIRE_BYTE_BUFFER_H_
#define CAPSTAN_PARAM_STORE_WIRE_BYTE_BUFFER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "param_store/wire/frame_codec.h"

namespace capstan::param_store::wire {

// Holds the slices of a received message, so that views into it live as long as this does.
class ReceivedBytes {
 public:
  // Takes the slices of `buffer` by reference count. InvalidArgument: a buffer that gRPC cannot
  // open.
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

// A part of a payload to be sent. The bytes stay unchanged until the last reference of `owner` is
// gone; gRPC holds one until it has written them, on whichever thread that happens. A custom
// deleter of `owner` is how a sender learns of it. It must not block.
struct OutgoingBytes {
  absl::string_view bytes;
  std::shared_ptr<const void> owner;
};

// `prefix` (copied, small) followed by the payload, which is referenced.
grpc::ByteBuffer MakeByteBuffer(absl::string_view prefix, absl::Span<const OutgoingBytes> payload);

// A small message through protobuf, with its check of this lineage; not a frame.
grpc::ByteBuffer MakeByteBuffer(v1::ExchangeRequest message, int64_t lineage);
grpc::ByteBuffer MakeByteBuffer(v1::ExchangeResponse message, int64_t lineage);

}  // namespace capstan::param_store::wire

#endif  // CAPSTAN_PARAM_STORE_WIRE_BYTE_BUFFER_H_
