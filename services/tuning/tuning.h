// Allocator and thread settings of all our processes. Call it first thing in main.
//
//   malloc   no trim, mmap threshold at its maximum, large top pad. Otherwise glibc returns every
//            freed message to the kernel and faults it in again. 1.8 to 1.9 times as fast on 1 MB
//            messages. A process may also limit the arenas (measured with one).
//   files    as many descriptors as the hard limit allows. gRPC 1.51 never accepts again once they
//            have run out (200 silent sockets against a limit of 128), and the usual soft limit is
//            1024.
//   Abseil   mutex deadlock detection off: 10 to 20 % on small messages.
//   threads  if a thread cannot be made, the process ends with a message (ThreadsText)
// The pollers of a gRPC server are limited where it is created (services/server).
#ifndef CAPSTAN_SERVICES_TUNING_TUNING_H_
#define CAPSTAN_SERVICES_TUNING_TUNING_H_

#include <string>

namespace capstan::services {

struct TuningOptions {
  int malloc_arenas = 0;  // 0: glibc's choice, 8 per core; >= 1: at most this many
};

// Call it before any other thread runs. Returns false if the allocator refused a setting. That is
// no reason to stop: under a sanitizer or another allocator there is nothing to set.
bool TuneProcess(const TuningOptions& options = {});

// The number of threads of a service at its start and at work, with some margin.
inline constexpr int kServiceThreads = 32;

// Ends the process with ThreadsText and exit code 1 if this many threads cannot be made in addition
// to the existing ones (`ulimit -u`, a limit of the container or unit). Otherwise gRPC would stop
// working later without any message. Takes about 1 ms.
void RequireThreads(int count = kServiceThreads);

// "cannot make a thread: <the system's words>; ...", with advice.
std::string ThreadsText(int error);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_TUNING_TUNING_H_
