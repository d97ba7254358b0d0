// SIGTERM and SIGINT as an event that main can wait for. A second signal ends the process at once.
//
//   int main(...) { ShutdownSignal& signal = ShutdownSignal::Install(); ...; signal.Wait(); ... }
//
// Call Install before other threads start work; it works at any time, though. It uses a handler
// with a pipe and no signal mask, so children inherit nothing. It also ignores SIGPIPE.
#ifndef CAPSTAN_SERVICES_SERVER_SIGNALS_H_
#define CAPSTAN_SERVICES_SERVER_SIGNALS_H_

#include "absl/time/time.h"

namespace capstan::services {

class ShutdownSignal {
 public:
  // Idempotent; the object lives as long as the process.
  static ShutdownSignal& Install();

  // Returns when the first SIGTERM or SIGINT has come, or Trigger was called. After that the next
  // signal of either kind ends the process at once with 128 + its number.
  void Wait();
  // The same for at most `timeout`; true if it came. Thread-safe, for any number of waiters.
  bool WaitFor(absl::Duration timeout);
  // Asks for the shutdown from inside the process.
  void Trigger();
  // SIGTERM or SIGINT; 0: no signal yet, or Trigger was called.
  int signal_number() const;

 private:
  ShutdownSignal();
};

// The longest that a service takes to end. It is less than the 90 s that our units and manifests
// allow. A shard may first hand its jobs over (--hand-over), so it is allowed 150 s.
inline constexpr absl::Duration kShutdownLimit = absl::Seconds(60);

// Ends the process with 1 after `limit`, with a log line, unless it has ended by then. Otherwise a
// hung disk could block the closing of a file, and thus the process, for ever.
void EndProcessAfter(absl::Duration limit);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SERVER_SIGNALS_H_
