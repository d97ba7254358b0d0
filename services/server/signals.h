// SIGTERM and SIGINT as something a main can wait for; a second signal exits at once.
//
//   int main(...) { ShutdownSignal& signal = ShutdownSignal::Install(); ...; signal.Wait(); ... }
//
// Install comes before other threads start work, but works at any time: it is a handler with a
// pipe, no signal mask, so children inherit nothing. It also ignores SIGPIPE.
#ifndef CAPSTAN_SERVICES_SERVER_SIGNALS_H_
#define CAPSTAN_SERVICES_SERVER_SIGNALS_H_

#include "absl/time/time.h"

namespace capstan::services {

class ShutdownSignal {
 public:
  // Idempotent; the object lives as long as the process.
  static ShutdownSignal& Install();

  // Returns when the first SIGTERM or SIGINT came, or Trigger was called. From then on the next one
  // of either ends the process at once with 128 + its number.
  void Wait();
  // The same, at most `timeout`; true when it came. Thread-safe, any number of waiters.
  bool WaitFor(absl::Duration timeout);
  // Asks for the shutdown from inside the process.
  void Trigger();
  // SIGTERM, SIGINT; 0: none came yet, or Trigger.
  int signal_number() const;

 private:
  ShutdownSignal();
};

// The longest that a service takes to end: less than the 90 s that our units and manifests give it. A
// shard may hand its jobs over before that (--hand-over), and is given 150 s.
inline constexpr absl::Duration kShutdownLimit = absl::Seconds(60);

// Ends the process with 1 after `limit`, with a line in the log, unless it has ended by then: a disk
// that hangs may hold whoever closes a file on it for ever.
void EndProcessAfter(absl::Duration limit);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SERVER_SIGNALS_H_
