#include "exchange/wire/byte_buffer.h"

#include <utility>

#include "services/sync/hand_over.h"

namespace capstan::exchange::wire {

absl::StatusOr<ReceivedBytes> ReceivedBytes::From(const grpc::ByteBuffer& buffer) {
  ReceivedBytes received;
  if (!buffer.Valid() || !buffer.Dump(&received.slices_).ok()) {
    return absl::InvalidArgumentError("exchange message: a buffer that gRPC cannot open");
  }
  // A short slice stores its bytes inside itself, so take the views once the vector is complete.
  received.pieces_.reserve(received.slices_.size());
  for (const grpc::Slice& slice : received.slices_) {
    received.pieces_.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return received;
}

grpc::ByteBuffer MakeByteBuffer(absl::string_view prefix, absl::Span<const OutgoingBytes> payload) {
  std::vector<grpc::Slice> slices;
  slices.reserve(payload.size() + 1);
  slices.emplace_back(static_cast<const void*>(prefix.data()), prefix.size());
  for (const OutgoingBytes& part : payload) {
    if (part.bytes.empty()) continue;
    auto* owner = new std::shared_ptr<const void>(part.owner);
    slices.emplace_back(
        const_cast<char*>(part.bytes.data()), part.bytes.size(),
        [](void* p) {
          TakeOver(p);
          delete static_cast<std::shared_ptr<const void>*>(p);
        },
        owner);
    // gRPC releases the slice on a thread of its own.
    HandOver(owner);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

namespace {

template <typename Message>
grpc::ByteBuffer MakeSmall(Message& message, int64_t lineage) {
  SetCheck(&message, lineage);
  const std::string bytes = message.SerializeAsString();
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

grpc::ByteBuffer MakeByteBuffer(v1::ExchangeRequest message, int64_t lineage) {
  return MakeSmall(message, lineage);
}

grpc::ByteBuffer MakeByteBuffer(v1::ExchangeResponse message, int64_t lineage) {
  return MakeSmall(message, lineage);
}

}  // namespace capstan::exchange::wire
