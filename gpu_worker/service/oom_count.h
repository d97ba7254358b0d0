// How often the system has killed a process for lack of memory, if it tells.
#ifndef CAPSTAN_GPU_WORKER_SERVICE_OOM_COUNT_H_
#define CAPSTAN_GPU_WORKER_SERVICE_OOM_COUNT_H_

#include <cstdint>
#include <string>

namespace capstan::gpu_worker {

struct OomCount {
  int64_t kills = 0;
  std::string file;  // the source of the count; empty: none
};

// The count of this process's control group (memory.events of version 2, memory.oom_control of
// version 1), else of the whole machine (/proc/vmstat). The kernel counts before the process ends.
// `root` is put in front of /proc and /sys, for tests. Thread-safe.
OomCount ReadOomCount(const std::string& root = "");

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_SERVICE_OOM_COUNT_H_
