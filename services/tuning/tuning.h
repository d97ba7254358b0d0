// Allocator and thread settings of every process of ours; the first call of main.
//
//   malloc   no trim, mmap threshold at its maximum, large top pad: glibc otherwise gives every
//            freed message back to the kernel and faults it in again. 1.8 to 1.9 times on 1 MB
//            messages. A process may limit the arenas too (measured with one).
//   files    as many descriptors as the hard limit allows: gRPC 1.51 never accepts again once they
//            have run out (200 silent sockets against a limit of 128), and the usual soft limit is
//            1024.
//   Abseil   mutex deadlock detection off: 10 to 20 % on small messages.
//   threads  one that cannot be made ends the process with a sentence (ThreadsText) where it throws
// The pollers of a gRPC server are limited where it is built (services/server).
#ifndef CAPSTAN_SERVICES_TUNING_TUNING_H_
#define CAPSTAN_SERVICES_TUNING_TUNING_H_

#include <string>

namespace capstan::services {

struct TuningOptions {
  int malloc_arenas = 0;  // 0: glibc's choice, 8 per core; >= 1: at most that many
};

// Before any other thread runs. Returns false when the allocator took a setting for invalid, which
// is no reason to stop: under a sanitizer or another allocator there is nothing to set.
bool TuneProcess(const TuningOptions& options = {});

// What a service has at its start and while it works, with some room.
inline constexpr int kServiceThreads = 32;

// Ends the process with ThreadsText and exit code 1 where so many threads cannot be made besides
// those that there are (`ulimit -u`, a limit of the container or unit): gRPC would stop working
// later, without a word. Takes about 1 ms.
void RequireThreads(int count = kServiceThreads);

// "cannot make a thread: <the system's words>; ...", with what to do.
std::string ThreadsText(int error);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_TUNING_TUNING_H_
