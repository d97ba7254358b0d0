// Waits until another thread of this process sleeps, for tests of wake-ups.
#ifndef CAPSTAN_TESTS_SUPPORT_ASLEEP_H_
#define CAPSTAN_TESTS_SUPPORT_ASLEEP_H_

#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace capstan {

inline pid_t ThisThread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

// False: the thread still ran after 20 s.
inline bool WaitUntilAsleep(pid_t thread) {
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (absl::Now() < end) {
    std::ifstream file(absl::StrCat("/proc/self/task/", thread, "/stat"));
    const std::string stat{std::istreambuf_iterator<char>(file), {}};
    const size_t name = stat.rfind(") ");
    if (name != std::string::npos && stat[name + 2] == 'S') return true;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return false;
}

}  // namespace capstan

#endif  // CAPSTAN_TESTS_SUPPORT_ASLEEP_H_
