#include "services/server/signals.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <thread>

#include "services/check/check.h"
#include "services/clock/clock.h"
#include "services/logging/log.h"

namespace capstan::services {
namespace {

int g_pipe[2] = {-1, -1};  // written once, before the handler is installed
std::atomic<int> g_signal{0};
std::atomic<int> g_count{0};
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

void Wake() {
  const int saved = errno;
  const char byte = 0;
  // Nobody reads the pipe, so it stays readable for every waiter, now and later.
  [[maybe_unused]] const ssize_t written = write(g_pipe[1], &byte, 1);
  errno = saved;
}

void OnSignal(int number) {
  if (g_count.fetch_add(1) > 0) _exit(128 + number);
  g_signal.store(number);
  Wake();
}

}  // namespace

ShutdownSignal::ShutdownSignal() {
  CAPSTAN_CHECK(pipe2(g_pipe, O_CLOEXEC | O_NONBLOCK) == 0);
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  CAPSTAN_CHECK(sigaction(SIGTERM, &action, nullptr) == 0);
  CAPSTAN_CHECK(sigaction(SIGINT, &action, nullptr) == 0);
  // If a reader is gone, write must fail instead of ending the process.
  signal(SIGPIPE, SIG_IGN);
}

ShutdownSignal& ShutdownSignal::Install() {
  static ShutdownSignal* const instance = new ShutdownSignal;
  return *instance;
}

void ShutdownSignal::Wait() { WaitFor(absl::InfiniteDuration()); }

bool ShutdownSignal::WaitFor(absl::Duration timeout) {
  const absl::Duration start = MonotonicNow();
  while (true) {
    int wait_ms = -1;
    if (timeout != absl::InfiniteDuration()) {
      const absl::Duration left =
          std::max(absl::ZeroDuration(), timeout - (MonotonicNow() - start));
      wait_ms = static_cast<int>(std::min<int64_t>(
          INT_MAX, absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1)))));
    }
    pollfd entry = {.fd = g_pipe[0], .events = POLLIN, .revents = 0};
    const int rc = poll(&entry, 1, wait_ms);
    if (rc > 0) return true;
    if (rc == 0) return false;
    CAPSTAN_CHECK(errno == EINTR);
  }
}

void ShutdownSignal::Trigger() { Wake(); }

int ShutdownSignal::signal_number() const { return g_signal.load(); }

void EndProcessAfter(absl::Duration limit) {
  std::thread([limit] {
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(limit));
    Log(kError, "shutdown_takes_too_long").Kv("seconds", limit);
    _exit(1);
  }).detach();
}

}  // namespace capstan::services
