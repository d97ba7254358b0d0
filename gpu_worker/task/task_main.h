// `capstan_gpu_worker task`: the child process of one task. Only the worker service starts it.
#ifndef CAPSTAN_GPU_WORKER_TASK_TASK_MAIN_H_
#define CAPSTAN_GPU_WORKER_TASK_TASK_MAIN_H_

#include <string>
#include <vector>

#include "services/endpoint/endpoint.h"

namespace capstan::gpu_worker {

struct TaskProcessOptions {
  int fd = 3;                        // of the link to the service
  std::vector<std::string> devices;  // names, one per device of the task
  int cpu_threads = 0;               // see TaskOptions
  services::Security security;
  std::string coordinator;  // address of its FileService; empty: storage_path is shared
  std::vector<std::string> data_roots;
  std::vector<std::string> checkpoint_roots;
  std::string log_level = "info";
};

// Converts `options` to the arguments after "task"; TaskMain converts them back (argv[0] is the
// binary, argv[1] "task").
std::vector<std::string> TaskArguments(const TaskProcessOptions& options);

// The exit code: 0 stopped, 1 failed (the state with the reason has been sent), 2 bad arguments, or
// a service of another build.
int TaskMain(int argc, const char* const* argv);

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_TASK_MAIN_H_
