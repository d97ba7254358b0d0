#include "exchange/wire/byte_buffer.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace capstan::exchange::wire {
namespace {

std::string Join(Pieces pieces) {
  std::string out;
  for (const absl::string_view piece : pieces) out.append(piece.data(), piece.size());
  return out;
}

TEST(ByteBufferTest, ThePayloadIsReferencedUntilGrpcLetsGo) {
  const std::string storage(100000, 'w');
  bool released = false;
  std::shared_ptr<const void> owner(storage.data(), [&released](const void*) { released = true; });
  {
    v1::WeightFrame frame;
    frame.set_version(4);
    const std::string prefix = EncodePrefix(frame, storage.size(), 1);
    const OutgoingBytes parts[] = {{absl::string_view(storage).substr(0, 40000), owner},
                                   {absl::string_view(storage).substr(40000), owner}};
    const grpc::ByteBuffer buffer = MakeByteBuffer(prefix, parts);
    owner.reset();
    EXPECT_FALSE(released);

    auto received = ReceivedBytes::From(buffer);
    ASSERT_TRUE(received.ok());
    ReceivedBytes moved = *std::move(received);
    ASSERT_EQ(moved.pieces().size(), 3u);
    EXPECT_EQ(moved.pieces()[1].data(), storage.data());  // the same memory, so nothing was copied
    const auto decoded = DecodeResponse(moved.pieces());
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(Join(decoded->payload), storage);
    EXPECT_EQ(decoded->payload[0].data(), storage.data());
  }
  EXPECT_TRUE(released);
}

TEST(ByteBufferTest, AShortSliceSurvivesAMove) {
  v1::ExchangeRequest message;
  message.mutable_seal()->set_step(5);
  auto received = ReceivedBytes::From(MakeByteBuffer(message, 3));
  ASSERT_TRUE(received.ok());
  std::vector<ReceivedBytes> kept;
  kept.push_back(*std::move(received));
  kept.emplace_back();
  kept.emplace_back();
  const auto decoded = DecodeRequest(kept[0].pieces());
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->message.seal().step(), 5);
  EXPECT_TRUE(decoded->Intact(3));
  EXPECT_FALSE(decoded->Intact(4));
}

TEST(ByteBufferTest, ABufferOfNothingIsRefused) {
  EXPECT_EQ(ReceivedBytes::From(grpc::ByteBuffer()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace capstan::exchange::wire
