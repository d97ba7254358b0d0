// How fast this machine moves bytes, to compare an exchange with.
#ifndef CAPSTAN_CLIENT_BENCH_MACHINE_LIMITS_H_
#define CAPSTAN_CLIENT_BENCH_MACHINE_LIMITS_H_

#include "absl/status/statusor.h"

namespace capstan::client {

// Bytes per second. Sockets: one way, one connection between two threads, in writes of 1 MiB.
struct MachineLimits {
  double copy = 0;  // from memory to memory
  double unix_socket = 0;
  double tcp = 0;  // over the loopback
};

// Takes less than a second. Each figure is the best of three. An error names the system call.
absl::StatusOr<MachineLimits> MeasureMachine();

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_BENCH_MACHINE_LIMITS_H_
