#include "services/server/http2_guard.h"

#include <gtest/gtest.h>

#include <string>

namespace capstan::services {
namespace {

constexpr absl::Duration kNow = absl::Seconds(1000);
constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string Frame(int type, int flags, size_t size) {
  std::string frame = {static_cast<char>(size >> 16),
                       static_cast<char>(size >> 8),
                       static_cast<char>(size),
                       static_cast<char>(type),
                       static_cast<char>(flags),
                       0,
                       0,
                       0,
                       1};
  return frame + std::string(size, 'x');
}
std::string Data(size_t size) { return Frame(0, 0, size); }
std::string Headers(size_t size, bool end) { return Frame(1, end ? 4 : 0, size); }
std::string Continuation(size_t size, bool end) { return Frame(9, end ? 4 : 0, size); }
std::string Reset() { return Frame(3, 0, 4); }

TEST(Http2GuardTest, HeadersDataAndTheirEndsPassHoweverTheyAreCut) {
  std::string all = kPreface;
  for (int i = 0; i < 50; ++i) {
    all += Headers(100, false) + Continuation(16000, false) + Continuation(16000, true);
    all += Data(100'000) + Frame(8, 0, 4) + Frame(4, 0, 6) + Headers(20, true);
  }
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{16384}, all.size()}) {
    Http2Guard guard;
    for (size_t at = 0; at < all.size(); at += piece) {
      ASSERT_TRUE(guard.Take(absl::string_view(all).substr(at, piece), kNow)) << piece << " " << at;
    }
    EXPECT_STREQ(guard.why(), "");
  }
}

TEST(Http2GuardTest, AHeaderBlockEndsBeforeItsLimit) {
  Http2Guard guard;
  ASSERT_TRUE(guard.Take(kPreface + Headers(9, false), kNow));
  const std::string frame = Continuation(1000, false);
  size_t sent = 18;
  while (guard.Take(frame, kNow)) {
    sent += frame.size();
    ASSERT_LE(sent, size_t{64} * 1024);
  }
  EXPECT_GT(sent + frame.size(), size_t{64} * 1024);
  EXPECT_STREQ(guard.why(), "a header block without an end");
  EXPECT_FALSE(guard.Take(Data(1), kNow + absl::Hours(1)));  // for ever
  // Empty frames count with their heads.
  Http2Guard empty;
  ASSERT_TRUE(empty.Take(kPreface + Headers(9, false), kNow));
  int frames = 0;
  while (empty.Take(Continuation(0, false), kNow)) ASSERT_LT(++frames, 64 * 1024 / 9);
  // The head gives the size of a frame before the frame arrives.
  Http2Guard whole;
  EXPECT_FALSE(whole.Take(kPreface + Headers(66'000, true).substr(0, 9), kNow));
}

TEST(Http2GuardTest, ResetsPassInABurstAndThenAtTheirRate) {
  Http2Guard guard;
  ASSERT_TRUE(guard.Take(kPreface, kNow));
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(guard.Take(Reset(), kNow)) << i;
  // A client whose calls reach their deadlines, one every 20 ms.
  absl::Duration now = kNow;
  for (int i = 0; i < 1000; ++i) {
    now += absl::Milliseconds(20);
    ASSERT_TRUE(guard.Take(Headers(50, true) + Reset(), now)) << i;
  }
  EXPECT_TRUE(guard.Take(Data(10), now));
  EXPECT_FALSE(guard.Take(Reset() + Reset(), now));
  EXPECT_STREQ(guard.why(), "streams that are opened and reset");
}

TEST(Http2GuardTest, WhatIsNoHttp2IsLeftAlone) {
  Http2Guard guard;
  EXPECT_TRUE(guard.Take("PR", kNow));
  EXPECT_TRUE(guard.Take("OPFIND / HTTP/1.1\r\n", kNow));
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(guard.Take(Reset() + Headers(9, false), kNow));
}

}  // namespace
}  // namespace capstan::services
