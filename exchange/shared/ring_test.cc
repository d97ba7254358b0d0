#include "exchange/shared/ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace capstan::exchange::shared {
namespace {

constexpr size_t kBytes = 1024;

class RingTest : public ::testing::Test {
 protected:
  RingResult Write(absl::string_view message) { return writer_.Write({&message, 1}); }
  // The message at the front, which is given back.
  std::string Read() {
    std::vector<absl::string_view> pieces;
    if (reader_.Front(&pieces) != RingResult::kDone) return "none";
    std::string message = absl::StrJoin(pieces, "");
    told_ = reader_.Pop();
    return message;
  }
  RingResult Front() {
    std::vector<absl::string_view> pieces;
    return reader_.Front(&pieces);
  }

  RingControl control_;
  alignas(8) char bytes_[kBytes] = {};
  RingWriter writer_{control_, absl::MakeSpan(bytes_)};
  RingReader reader_{control_, absl::MakeSpan(bytes_)};
  bool told_ = false;
};

TEST_F(RingTest, MessagesComeInOrderAndWhole) {
  EXPECT_FALSE(reader_.Ready());
  EXPECT_EQ(Read(), "none");
  const std::vector<absl::string_view> pieces = {"one, ", "", "in pieces"};
  EXPECT_EQ(writer_.Write(pieces), RingResult::kDone);
  EXPECT_EQ(Write(""), RingResult::kDone);
  EXPECT_EQ(Write("three"), RingResult::kDone);
  EXPECT_TRUE(reader_.Ready());
  EXPECT_EQ(Read(), "one, in pieces");
  EXPECT_EQ(Read(), "");
  EXPECT_EQ(Read(), "three");
  EXPECT_FALSE(reader_.Ready());
}

TEST_F(RingTest, AMessageMayWrap) {
  for (int i = 0; i < 100; ++i) {
    const std::string message = absl::StrCat(i, std::string(static_cast<size_t>(300 + i), 'x'));
    ASSERT_EQ(Write(message), RingResult::kDone);
    ASSERT_EQ(Read(), message);
  }
}

TEST_F(RingTest, AReaderTellsOnceThereIsRoomForOneThatWaits) {
  const std::string message(240, 'x');  // 248 bytes with its length: four of them fit
  for (int i = 0; i < 4; ++i) ASSERT_EQ(Write(message), RingResult::kDone);
  EXPECT_EQ(Read(), message);
  EXPECT_FALSE(told_) << "nobody waits";
  EXPECT_EQ(Write(message), RingResult::kDone);
  EXPECT_EQ(Write(message), RingResult::kNothing);
  EXPECT_EQ(writer_.HasRoom(message.size()), RingResult::kNothing);
  EXPECT_EQ(Read(), message);
  EXPECT_FALSE(told_) << "more than half is in use";
  EXPECT_EQ(Read(), message);
  EXPECT_TRUE(told_);
  EXPECT_EQ(writer_.HasRoom(message.size()), RingResult::kDone);
  EXPECT_EQ(Write(message), RingResult::kDone);
  EXPECT_EQ(Read(), message);
  EXPECT_FALSE(told_);
}

TEST_F(RingTest, AMessageLongerThanTheRingIsTooLong) {
  EXPECT_EQ(Write(std::string(kBytes, 'x')), RingResult::kTooLong);
  EXPECT_EQ(Write(std::string(kBytes - 8, 'x')), RingResult::kDone);
}

TEST_F(RingTest, CountersThatCannotBeAreBroken) {
  for (const uint64_t written : {uint64_t{kBytes + 8}, uint64_t{4}, uint64_t{12}, ~uint64_t{0}}) {
    control_.written = written;
    EXPECT_EQ(Front(), RingResult::kBroken) << written;
  }
  control_.written = 0;
  control_.read = 8;
  EXPECT_EQ(Write("x"), RingResult::kBroken);
}

TEST_F(RingTest, LengthsThatCannotBeAreBroken) {
  ASSERT_EQ(Write("eight by"), RingResult::kDone);
  for (const uint64_t length :
       {uint64_t{9}, uint64_t{kBytes}, uint64_t{1} << 32, ~uint64_t{0}, ~uint64_t{0} - 14}) {
    std::memcpy(bytes_, &length, sizeof(length));
    EXPECT_EQ(Front(), RingResult::kBroken) << length;
  }
}

// What is decided by a header is decided by one reading of it.
TEST_F(RingTest, TheFirstBytesOfAMessageDoNotChangeAnyMore) {
  ASSERT_EQ(Write("header and more"), RingResult::kDone);
  std::vector<absl::string_view> pieces;
  ASSERT_EQ(reader_.Front(&pieces), RingResult::kDone);
  std::memset(bytes_, 'y', sizeof(bytes_));
  EXPECT_EQ(absl::StrJoin(pieces, ""), "header and more");
}

TEST(RingThreadsTest, TwoThreadsExchangeMessagesOfAllLengths) {
  constexpr size_t kRing = 16384;
  constexpr int kMessages = 20000;
  RingControl control;
  std::vector<char> bytes(kRing);
  std::thread writing([&] {
    RingWriter writer(control, absl::MakeSpan(bytes));
    std::mt19937 draw(1);
    for (int i = 0; i < kMessages; ++i) {
      const std::string message(draw() % 9000, static_cast<char>(i));
      const absl::string_view piece = message;
      while (writer.Write({&piece, 1}) == RingResult::kNothing) std::this_thread::yield();
    }
  });
  RingReader reader(control, absl::MakeSpan(bytes));
  std::mt19937 draw(1);
  std::vector<absl::string_view> pieces;
  for (int i = 0; i < kMessages; ++i) {
    RingResult result;
    while ((result = reader.Front(&pieces)) == RingResult::kNothing) std::this_thread::yield();
    ASSERT_EQ(result, RingResult::kDone);
    ASSERT_EQ(absl::StrJoin(pieces, ""), std::string(draw() % 9000, static_cast<char>(i))) << i;
    reader.Pop();
  }
  writing.join();
}

}  // namespace
}  // namespace capstan::exchange::shared
