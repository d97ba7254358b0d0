#include "services/clock/clock_reading.h"

#include "gtest/gtest.h"

namespace capstan {
namespace {

TEST(ClockReadingTest, AClockIsReadFromFourTimes) {
  // Sent at 0, and 3 s on the way. Received at 103 of a clock that is 100 s ahead. After 5 s of
  // work the answer needs 1 s. So the round trip is 4 s, and because its halves are unequal the
  // clock is wrong by 1 s.
  const absl::Time zero = absl::UnixEpoch();
  const ClockReading clock = ReadClock(zero, zero + absl::Seconds(103), zero + absl::Seconds(108),
                                       zero + absl::Seconds(9));
  EXPECT_DOUBLE_EQ(clock.round_trip_seconds, 4);
  EXPECT_DOUBLE_EQ(clock.ahead_seconds, 101);
}

}  // namespace
}  // namespace capstan
