// Allocator and thread settings of every process of ours; the first call of main.
//
//   malloc   no trim, mmap threshold at its maximum, large top pad: glibc otherwise gives every
//            freed message back to the kernel and faults it in again. 1.8 to 1.9 times on 1 MB
//            messages. A process may limit the arenas too (measured with one).
//   files    as many descriptors as the hard limit allows: gRPC 1.51 never accepts again once they
//            have run out (200 silent sockets against a limit of 128), and the usual soft limit is
//            1024.
//   Abseil   mutex deadlock detection off: 10 to 20 % on small messages.
// The pollers of a gRPC server are limited where it is built (services/server).
#ifndef CAPSTAN_SERVICES_TUNING_TUNING_H_
#define CAPSTAN_SERVICES_TUNING_TUNING_H_

namespace capstan::services {

struct TuningOptions {
  int malloc_arenas = 0;  // 0: glibc's choice, 8 per core; >= 1: at most that many
};

// Before any other thread runs. Returns false when the allocator took a setting for invalid, which
// is no reason to stop: under a sanitizer or another allocator there is nothing to set.
bool TuneProcess(const TuningOptions& options = {});

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_TUNING_TUNING_H_
