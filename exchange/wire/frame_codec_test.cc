#include "exchange/wire/frame_codec.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/codec/crc32c.h"

namespace capstan::exchange::wire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string FloatBytes(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

std::string Join(Pieces pieces) {
  std::string out;
  for (const absl::string_view piece : pieces) out.append(piece.data(), piece.size());
  return out;
}

// Cuts the bytes at every position of `cuts`, which is ascending.
std::vector<absl::string_view> CutAt(absl::string_view bytes, const std::vector<size_t>& cuts) {
  std::vector<absl::string_view> pieces;
  size_t from = 0;
  for (const size_t cut : cuts) {
    pieces.push_back(bytes.substr(from, cut - from));
    from = cut;
  }
  pieces.push_back(bytes.substr(from));
  return pieces;
}

v1::Frame SomeFrame() {
  v1::Frame frame;
  frame.set_step(1000000);
  frame.set_first_lane(4);
  frame.set_lane_count(2);
  frame.set_first_chunk(300);
  frame.add_crc32c(0xdeadbeef);
  frame.add_crc32c(7);
  return frame;
}

std::string Lengths(absl::string_view inner) {  // a message with one field 15 that holds `inner`
  std::string out = "\x7a";
  size_t n = inner.size();
  while (n >= 0x80) {
    out.push_back(static_cast<char>(n | 0x80));
    n >>= 7;
  }
  out.push_back(static_cast<char>(n));
  return out.append(inner.data(), inner.size());
}

TEST(FrameCodecTest, WritesWhatProtobufReads) {
  const std::string payload = FloatBytes({1.5f, -2.0f, 3.25f});
  const v1::Frame frame = SomeFrame();
  const std::string bytes = EncodePrefix(frame, payload.size()) + payload;

  v1::ExchangeRequest read;
  ASSERT_TRUE(read.ParseFromString(bytes));
  v1::ExchangeRequest want;
  *want.mutable_frame() = frame;
  want.mutable_frame()->set_payload(payload);
  EXPECT_EQ(bytes, want.SerializeAsString());
  EXPECT_EQ(read.frame().payload(), payload);
  EXPECT_EQ(read.frame().first_chunk(), 300);
}

TEST(FrameCodecTest, WritesWeightsWhatProtobufReads) {
  const std::string payload(300 * 4, 'x');  // its length needs two varint bytes
  v1::ExchangeResponse want;
  want.mutable_weights()->set_version(9);
  want.mutable_weights()->set_stop(true);
  want.mutable_weights()->add_crc32c(1);
  const std::string prefix = EncodePrefix(want.weights(), payload.size());
  want.mutable_weights()->set_payload(payload);
  EXPECT_EQ(prefix + payload, want.SerializeAsString());
}

TEST(FrameCodecTest, WritesAPayloadOfAnyLength) {
  for (const size_t size : {1, 4, 127, 128, 16384, 1 << 20}) {
    v1::ExchangeRequest want;
    *want.mutable_frame() = SomeFrame();
    const std::string prefix = EncodePrefix(want.frame(), size);
    const std::string payload(size, 'x');
    want.mutable_frame()->set_payload(payload);
    EXPECT_EQ(prefix + payload, want.SerializeAsString()) << size;
  }
}

TEST(FrameCodecTest, AFrameWithoutPayloadIsAMessageToo) {
  v1::ExchangeRequest want;
  want.mutable_frame()->set_step(3);
  const std::string bytes = EncodePrefix(want.frame(), 0);
  EXPECT_EQ(bytes, want.SerializeAsString());
  const absl::string_view piece = bytes;
  const auto decoded = DecodeRequest({&piece, 1});
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->message.frame().step(), 3);
  EXPECT_EQ(decoded->payload_bytes, 0u);
}

// Every pair of cuts, inside tags, lengths, checksums and the payload.
TEST(FrameCodecTest, ReadsWhatProtobufWritesHoweverItIsCut) {
  v1::ExchangeRequest message;
  *message.mutable_frame() = SomeFrame();
  const std::string payload = FloatBytes(
      {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17,
       18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33});  // 132 bytes: a length of
                                                                          // two varint bytes
  message.mutable_frame()->set_payload(payload);
  const std::string bytes = message.SerializeAsString();
  for (size_t i = 0; i <= bytes.size(); ++i) {
    for (size_t j = i; j <= bytes.size(); j += 7) {
      const auto pieces = CutAt(bytes, {i, j});
      const auto decoded = DecodeRequest(pieces);
      ASSERT_TRUE(decoded.ok()) << decoded.status() << " cut at " << i << ", " << j;
      EXPECT_EQ(decoded->payload_bytes, payload.size());
      EXPECT_EQ(Join(decoded->payload), payload);
      EXPECT_EQ(decoded->message.frame().SerializeAsString(), SomeFrame().SerializeAsString());
    }
  }
}

TEST(FrameCodecTest, EveryTruncationIsRefused) {
  v1::ExchangeResponse message;
  message.mutable_weights()->set_version(1);
  message.mutable_weights()->add_crc32c(5);
  message.mutable_weights()->set_payload(FloatBytes({1, 2, 3}));
  const std::string bytes = message.SerializeAsString();
  for (size_t n = 0; n < bytes.size(); ++n) {
    const absl::string_view piece = absl::string_view(bytes).substr(0, n);
    EXPECT_EQ(DecodeResponse({&piece, 1}).status().code(), absl::StatusCode::kInvalidArgument) << n;
  }
}

TEST(FrameCodecTest, SmallMessagesGoThroughProtobuf) {
  v1::ExchangeRequest message;
  message.mutable_seal()->set_step(3);
  message.mutable_seal()->set_loss_sum(2.5);
  const std::string bytes = message.SerializeAsString();
  const auto pieces = CutAt(bytes, {1, 2});
  const auto decoded = DecodeRequest(pieces);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->message.seal().loss_sum(), 2.5);
  EXPECT_TRUE(decoded->payload.empty());
}

struct Hostile {
  const char* name;
  std::string bytes;
  const char* message;
};

TEST(FrameCodecTest, HostileBytesAreNamed) {
  using namespace std::string_literals;  // NOLINT: literals with NUL bytes
  v1::ExchangeRequest with_both;
  with_both.mutable_hello()->set_job_id("j");
  std::string both = with_both.SerializeAsString() + Lengths("\x08\x01");
  const std::string five(5, 'x');
  const Hostile cases[] = {
      {"empty", "", "empty"},
      {"unknown field alone", "\x20\x01", "says nothing"},
      {"endless varint", "\x7a" + std::string(20, '\xff'), "frame length"},
      {"frame longer than the message", "\x7a\x10\x08\x01", "16 bytes, want the rest"},
      {"bytes behind the frame", Lengths("\x08\x01") + "\x08\x01", "want the rest"},
      {"frame twice", Lengths("\x08\x01") + Lengths("\x08\x02"), "want the rest"},
      {"frame behind a hello", both, "beside other fields"},
      {"payload not last",
       Lengths("\x7a\x04"
               "abcd"
               "\x08\x01"),
       "rest of the message"},
      {"payload twice",
       Lengths("\x7a\x04"
               "abcd"
               "\x7a\x04"
               "abcd"),
       "rest of the message"},
      {"payload of 5", Lengths("\x7a\x05" + five), "multiple of 4"},
      {"payload of 2^63", Lengths("\x7a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), "limit"},
      {"field 0", Lengths("\x00\x01"s), "bad tag"},
      {"group", Lengths("\x0b\x0c"), "wire type"},
      {"deep groups", Lengths(std::string(5000, '\x0b')), "wire type"},
      {"length 2^40 of a field", Lengths("\x0a\x80\x80\x80\x80\x80\x20"), "cut off"},
      {"fixed32 cut off", Lengths("\x0d\x01"), "cut off"},
      {"tag beyond 32 bits", Lengths("\x88\x80\x80\x80\x80\x01\x00"s), "bad tag"},
      {"not protobuf", std::string(100, '\xff'), "does not parse"},
      {"header too long", Lengths("\xa2\x01\x84\x80\x04" + std::string(65540, 'h')), "header"},
      {"small message too long", "\x0a\x84\x80\x04" + std::string(kMaxMessageBytes, 'h'), "limit"},
      {"too long", Lengths(std::string(kMaxMessageBytes, 'h')), "limit"},
  };
  for (const Hostile& hostile : cases) {
    SCOPED_TRACE(hostile.name);
    const absl::string_view piece = hostile.bytes;
    const absl::Status status = DecodeRequest({&piece, 1}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(hostile.message));
  }
}

TEST(FrameCodecTest, APayloadOfOneMebibytePassesAndNoMore) {
  v1::ExchangeRequest message;
  message.mutable_frame()->set_payload(std::string(kMaxPayloadBytes, 'p'));
  std::string bytes = message.SerializeAsString();
  absl::string_view piece = bytes;
  EXPECT_TRUE(DecodeRequest({&piece, 1}).ok());
  message.mutable_frame()->set_payload(std::string(kMaxPayloadBytes + 4, 'p'));
  bytes = message.SerializeAsString();
  piece = bytes;
  EXPECT_THAT(std::string(DecodeRequest({&piece, 1}).status().message()),
              HasSubstr("limit 1048576"));
}

// An unknown field of `size_bytes` bytes, with its tag and length.
std::string UnknownField(size_t size_bytes) {
  const size_t n = size_bytes - 5;
  std::string out = "\xa2\x01";
  out.push_back(static_cast<char>(n | 0x80));
  out.push_back(static_cast<char>((n >> 7) | 0x80));
  out.push_back(static_cast<char>(n >> 14));
  return out + std::string(n, 'h');
}

TEST(FrameCodecTest, EachLimitIsTheLargestThatPasses) {
  const auto decode = [](const std::string& bytes) {
    const absl::string_view piece = bytes;
    return DecodeRequest({&piece, 1}).status();
  };
  EXPECT_EQ(decode(Lengths(UnknownField(kMaxHeaderBytes))), absl::OkStatus());
  EXPECT_THAT(std::string(decode(Lengths(UnknownField(kMaxHeaderBytes + 1))).message()),
              HasSubstr("header: 65537 bytes, limit 65536"));

  v1::ExchangeRequest seal;
  seal.mutable_seal()->set_step(3);
  const std::string small = seal.SerializeAsString();
  EXPECT_EQ(decode(small + UnknownField(kMaxMessageBytes - small.size())), absl::OkStatus());
  EXPECT_THAT(
      std::string(decode(small + UnknownField(kMaxMessageBytes + 1 - small.size())).message()),
      HasSubstr("1114113 bytes, limit 1114112"));

  const std::string payload = Lengths(std::string(kMaxPayloadBytes, 'p'));
  const size_t left = kMaxMessageBytes - 4 - payload.size();  // 4: tag and length of the frame
  EXPECT_EQ(decode(Lengths(UnknownField(left) + payload)), absl::OkStatus());
  EXPECT_THAT(std::string(decode(Lengths(UnknownField(left + 1) + payload)).message()),
              HasSubstr("1114113 bytes, limit 1114112"));
}

// A known field with a wrong wire type is an unknown field to protobuf, and so to this code.
TEST(FrameCodecTest, AWrongWireTypeReadsAsProtobufReadsIt) {
  const std::string bytes = Lengths(
      "\x0d"
      "abcd"
      "\x78\x05"
      "\x7a\x04"
      "wxyz");
  v1::ExchangeRequest want;
  ASSERT_TRUE(want.ParseFromString(bytes));
  const absl::string_view piece = bytes;
  const auto decoded = DecodeRequest({&piece, 1});
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->message.frame().step(), want.frame().step());
  EXPECT_EQ(Join(decoded->payload), want.frame().payload());
}

// Random damage: whatever this code accepts, protobuf accepts with the same meaning.
TEST(FrameCodecTest, DamagedBytesNeverMeanSomethingElseThanToProtobuf) {
  std::mt19937 random(1);
  v1::ExchangeRequest message;
  *message.mutable_frame() = SomeFrame();
  message.mutable_frame()->set_payload(std::string(64, 'p'));
  const std::string good = message.SerializeAsString();
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (int k = 0; k < 2; ++k) bytes[random() % 40] = static_cast<char>(random());
    const absl::string_view piece = bytes;
    auto decoded = DecodeRequest({&piece, 1});
    if (!decoded.ok()) continue;
    ++accepted;
    v1::ExchangeRequest want;
    ASSERT_TRUE(want.ParseFromString(bytes));
    if (decoded->message.has_frame()) {
      decoded->message.mutable_frame()->set_payload(Join(decoded->payload));
    }
    ASSERT_EQ(decoded->message.SerializeAsString(), want.SerializeAsString());
  }
  EXPECT_GT(accepted, 100);
}

// Every flipped bit before the payload is found by the decoder or by the check, which also covers
// the lineage.
TEST(FrameCodecTest, NoFlippedBitOfAHeaderPasses) {
  const std::string payload = FloatBytes({1, 2, 3});
  const std::string prefix = EncodePrefix(SomeFrame(), payload.size(), 7);
  const auto intact = [&](const std::string& bytes, int64_t lineage) {
    const absl::string_view piece = bytes;
    const auto decoded = DecodeRequest({&piece, 1});
    return decoded.ok() && decoded->Intact(lineage);
  };
  EXPECT_TRUE(intact(prefix + payload, 7));
  EXPECT_FALSE(intact(prefix + payload, 6));
  EXPECT_FALSE(intact(EncodePrefix(SomeFrame(), payload.size()) + payload, 7));  // no check
  for (size_t bit = 0; bit < 8 * prefix.size(); ++bit) {
    std::string bytes = prefix + payload;
    bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_FALSE(intact(bytes, 7)) << "bit " << bit;
  }
  v1::ExchangeRequest seal;
  seal.mutable_seal()->set_step(3);
  seal.mutable_seal()->set_first_lane(4);
  seal.mutable_seal()->set_loss_sum(2.5);
  SetCheck(&seal, 7);
  const std::string good = seal.SerializeAsString();
  EXPECT_TRUE(intact(good, 7));
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bytes = good;
    bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
    EXPECT_FALSE(intact(bytes, 7)) << "bit " << bit;
  }
}

// Likewise of a message between shards: a part to the lead, and a decision from it.
TEST(FrameCodecTest, NoFlippedBitOfAPartOrADecisionPasses) {
  const auto flip = [](const std::string& good, const auto& decode) {
    const auto intact = [&decode](absl::string_view bytes) {
      const auto decoded = decode({&bytes, 1});
      return decoded.ok() && decoded->Intact(7);
    };
    EXPECT_TRUE(intact(good));
    for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
      std::string bytes = good;
      bytes[bit / 8] ^= static_cast<char>(1 << bit % 8);
      EXPECT_FALSE(intact(bytes)) << "bit " << bit;
    }
  };
  v1::ExchangeRequest part;
  part.mutable_part()->set_step(3);
  part.mutable_part()->set_shard(1);
  part.mutable_part()->set_finite(true);
  SetCheck(&part, 7);
  flip(part.SerializeAsString(), [](Pieces bytes) { return DecodeRequest(bytes); });
  v1::ExchangeResponse decision;
  decision.mutable_decision()->set_step(3);
  decision.mutable_decision()->set_apply(true);
  decision.mutable_decision()->set_learning_rate(0.1);
  SetCheck(&decision, 7);
  flip(decision.SerializeAsString(), [](Pieces bytes) { return DecodeResponse(bytes); });
}

// The two ways to write a check agree.
TEST(FrameCodecTest, ACheckIsTheSameWhoeverWritesIt) {
  const std::string payload = FloatBytes({1, 2, 3});
  v1::ExchangeRequest whole;
  *whole.mutable_frame() = SomeFrame();
  whole.mutable_frame()->set_payload(payload);
  SetCheck(&whole, 7);
  EXPECT_EQ(whole.SerializeAsString(), EncodePrefix(SomeFrame(), payload.size(), 7) + payload);
  // By hand: the fields of SomeFrame, then 7 as 8 bytes.
  const std::string fields =
      SomeFrame().SerializeAsString() + std::string("\x07") + std::string(7, '\0');
  EXPECT_EQ(whole.frame().check(), training::Crc32c(fields));
  // A Hello contains the lineage itself.
  v1::ExchangeRequest hello;
  hello.mutable_hello()->set_lineage(9);
  SetCheck(&hello, 9);
  const uint32_t check = hello.check();
  SetCheck(&hello, 0);
  EXPECT_EQ(hello.check(), check);
}

TEST(PayloadReaderTest, WalksChunksOverUnalignedPieces) {
  const std::string bytes = " " + FloatBytes({1, 2, 3, 4, 5});  // floats begin at an odd address
  const auto cut = CutAt(absl::string_view(bytes).substr(1), {0, 3, 3, 9, 17});
  PayloadReader reader(cut);
  std::vector<absl::string_view> chunk;
  ASSERT_TRUE(reader.Next(8, &chunk));
  EXPECT_EQ(Crc32cOf(chunk), training::Crc32c(FloatBytes({1, 2})));
  float two[2];
  CopyFloats(chunk, absl::MakeSpan(two));
  EXPECT_THAT(two, ElementsAre(1, 2));
  ASSERT_TRUE(reader.Next(12, &chunk));
  float three[3];
  CopyFloats(chunk, absl::MakeSpan(three));
  EXPECT_THAT(three, ElementsAre(3, 4, 5));
  EXPECT_TRUE(reader.AtEnd());
  EXPECT_FALSE(reader.Next(4, &chunk));
  EXPECT_TRUE(chunk.empty());
}

TEST(PayloadReaderTest, CopiesAreCounted) {
  const CopyCount before = GetCopyCount();
  const std::string bytes = FloatBytes({1, 2});
  const absl::string_view piece = bytes;
  float out[2];
  CopyFloats({&piece, 1}, absl::MakeSpan(out));
  EncodePrefix(SomeFrame(), 8);
  const CopyCount after = GetCopyCount();
  EXPECT_EQ(after.copied_bytes - before.copied_bytes, 8);
  EXPECT_EQ(after.exchanged_bytes - before.exchanged_bytes, 8);
}

}  // namespace
}  // namespace capstan::exchange::wire
