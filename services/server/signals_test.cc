#include "services/server/signals.h"

#include <signal.h>
#include <unistd.h>

#include <thread>

#include "gtest/gtest.h"

namespace capstan::services {
namespace {

// Each case runs in its own child process, because a process remembers the first signal.
TEST(ShutdownSignalDeathTest, FirstSignalWakesEveryWaiterAndSaysWhich) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ShutdownSignal& signal = ShutdownSignal::Install();
        bool early = signal.WaitFor(absl::ZeroDuration());
        std::thread other([&signal] { signal.Wait(); });
        raise(SIGTERM);
        signal.Wait();
        other.join();
        _exit(!early && signal.WaitFor(absl::ZeroDuration()) && signal.signal_number() == SIGTERM
                  ? 0
                  : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(ShutdownSignalDeathTest, SecondSignalExitsAtOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ShutdownSignal::Install();
        raise(SIGTERM);
        raise(SIGINT);
        _exit(0);
      },
      ::testing::ExitedWithCode(130), "");
}

TEST(ShutdownSignalDeathTest, TriggerIsNoSignal) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ShutdownSignal& signal = ShutdownSignal::Install();
        signal.Trigger();
        signal.Wait();
        raise(SIGTERM);  // the first signal is still only a request
        _exit(signal.signal_number() == SIGTERM ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(EndProcessAfterDeathTest, AProcessThatCannotEndIsEnded) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        EndProcessAfter(absl::Milliseconds(50));
        while (true) pause();  // like a process with a thread on a hung disk
      },
      ::testing::ExitedWithCode(1), "event=shutdown_takes_too_long");
}

}  // namespace
}  // namespace capstan::services
