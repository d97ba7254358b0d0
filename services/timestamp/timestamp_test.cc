#include "services/timestamp/timestamp.h"

#include "gtest/gtest.h"

namespace capstan {
namespace {

TEST(TimestampTest, TimesTravelToTheNanosecond) {
  for (const absl::Duration since : {absl::ZeroDuration(), absl::Nanoseconds(1),
                                     absl::Seconds(1767323045) + absl::Nanoseconds(999999999),
                                     absl::Nanoseconds(-1), absl::Seconds(-3)}) {
    google::protobuf::Timestamp stamp;
    SetTime(absl::UnixEpoch() + since, &stamp);
    EXPECT_GE(stamp.nanos(), 0) << since;  // also before 1970, as protobuf wants it
    EXPECT_EQ(TimeOf(stamp), absl::UnixEpoch() + since);
  }
}

TEST(TimestampTest, ATimeThatIsNotFiniteIsNotSet) {
  google::protobuf::Timestamp stamp;
  stamp.set_seconds(7);
  SetTime(absl::InfinitePast(), &stamp);
  SetTime(absl::InfiniteFuture(), &stamp);
  EXPECT_EQ(stamp.seconds(), 7);
}

}  // namespace
}  // namespace capstan
