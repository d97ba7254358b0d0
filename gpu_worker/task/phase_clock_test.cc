#include "gpu_worker/task/phase_clock.h"

#include <gtest/gtest.h>

namespace capstan::gpu_worker {
namespace {

absl::Duration S(double seconds) { return absl::Seconds(seconds); }

TEST(PhaseClockTest, PhasesAddUpToTheTotal) {
  PhaseClock clock(S(100));
  EXPECT_EQ(clock.Enter(StepPhase::kForwardBackward, S(101)), StepPhase::kBarrierWait);
  EXPECT_EQ(clock.Enter(StepPhase::kPush, S(105)), StepPhase::kForwardBackward);
  clock.Enter(StepPhase::kBarrierWait, S(106));
  clock.Enter(StepPhase::kBarrierWait, S(109));
  EXPECT_EQ(clock.spent(StepPhase::kForwardBackward), S(4));
  EXPECT_EQ(clock.spent(StepPhase::kPush), S(1));
  EXPECT_EQ(clock.spent(StepPhase::kBarrierWait), S(4));
  clock.Move(StepPhase::kBarrierWait, StepPhase::kPull, S(3));
  EXPECT_EQ(clock.spent(StepPhase::kPull), S(3));
  clock.Move(StepPhase::kBarrierWait, StepPhase::kPull, S(3));  // one second is left
  EXPECT_EQ(clock.spent(StepPhase::kPull), S(4));
  EXPECT_EQ(clock.spent(StepPhase::kBarrierWait), S(0));
  EXPECT_EQ(clock.total(), S(9));
}

}  // namespace
}  // namespace capstan::gpu_worker
