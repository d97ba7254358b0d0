#include "services/clock/clock_reading.h"

#include "gtest/gtest.h"

namespace capstan {
namespace {

TEST(ClockReadingTest, AClockIsReadFromFourTimes) {
  // Sent at 0, 3 s on the way, asked there at 103 of a clock 100 s ahead, 5 s of work, 1 s back: the
  // way there and back is 4 s, and of the uneven halves the clock is wrong by 1 s.
  const absl::Time zero = absl::UnixEpoch();
  const ClockReading clock = ReadClock(zero, zero + absl::Seconds(103), zero + absl::Seconds(108),
                                       zero + absl::Seconds(9));
  EXPECT_DOUBLE_EQ(clock.round_trip_seconds, 4);
  EXPECT_DOUBLE_EQ(clock.ahead_seconds, 101);
}

}  // namespace
}  // namespace capstan
