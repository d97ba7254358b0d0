#include "services/tuning/tuning.h"

#include <malloc.h>
#include <sys/resource.h>

#include "services/sync/deadlock_detection.h"

namespace capstan::services {

bool TuneProcess(const TuningOptions& options) {
  TurnOffAbslDeadlockDetection();
  bool taken = true;
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    taken &= setrlimit(RLIMIT_NOFILE, &files) == 0;
  }
  // 32 MiB is the largest threshold that glibc takes: half of a heap of a thread's arena.
  taken &= mallopt(M_MMAP_THRESHOLD, 32 << 20) == 1;
  taken &= mallopt(M_TRIM_THRESHOLD, 2000 << 20) == 1;
  taken &= mallopt(M_TOP_PAD, 64 << 20) == 1;
  if (options.malloc_arenas > 0) taken &= mallopt(M_ARENA_MAX, options.malloc_arenas) == 1;
  return taken;
}

}  // namespace capstan::services
