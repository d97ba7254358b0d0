#include "client/bench/machine_limits.h"

#include <gtest/gtest.h>

namespace capstan::client {
namespace {

// Wide bounds: no machine moves less than 10 MB/s, or more than 10 TB/s.
TEST(MachineLimitsTest, AreThoseOfAMachine) {
  const absl::StatusOr<MachineLimits> limits = MeasureMachine();
  ASSERT_TRUE(limits.ok()) << limits.status();
  for (const double speed : {limits->copy, limits->unix_socket, limits->tcp}) {
    EXPECT_GT(speed, 1e7);
    EXPECT_LT(speed, 1e13);
  }
}

}  // namespace
}  // namespace capstan::client
