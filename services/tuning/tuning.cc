#include "services/tuning/tuning.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <system_error>
#include <vector>

#include "services/sync/deadlock_detection.h"

namespace capstan::services {
namespace {

constexpr size_t kStackBytes = 64 * 1024;  // for a thread that only waits

[[noreturn]] void EndForThreads(int error) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, ThreadsText(error).c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

// std::thread throws if no thread can be made, and nobody catches that.
[[noreturn]] void OnTerminate() {
  if (const std::exception_ptr current = std::current_exception(); current != nullptr) {
    try {
      std::rethrow_exception(current);
    } catch (const std::system_error& error) {
      if (error.code() == std::errc::resource_unavailable_try_again) EndForThreads(EAGAIN);
      std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, error.what());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, error.what());
    } catch (...) {
    }
  }
  std::abort();
}

void* WaitForEnd(void* pipe) {
  pollfd end = {*static_cast<int*>(pipe), 0, 0};
  while (poll(&end, 1, -1) < 0 && errno == EINTR) {
  }
  return nullptr;
}

}  // namespace

std::string ThreadsText(int error) {
  return std::string("cannot make a thread: ") + std::strerror(error) +
         "; raise the limit of processes (ulimit -u, TasksMax= of the systemd unit, the pids limit "
         "of the container)";
}

void RequireThreads(int count) {
  int pipe[2];
  if (pipe2(pipe, O_CLOEXEC) != 0) return;  // a lack of descriptors is reported elsewhere
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, kStackBytes);
  std::vector<pthread_t> threads;
  int error = 0;
  while (error == 0 && static_cast<int>(threads.size()) < count) {
    pthread_t thread;
    error = pthread_create(&thread, &small, WaitForEnd, &pipe[0]);
    if (error == 0) threads.push_back(thread);
  }
  close(pipe[1]);  // each thread sees the end of its pipe
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  pthread_attr_destroy(&small);
  close(pipe[0]);
  if (error != 0) EndForThreads(error);
}

bool TuneProcess(const TuningOptions& options) {
  TurnOffAbslDeadlockDetection();
  std::set_terminate(OnTerminate);
  bool taken = true;
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    taken &= setrlimit(RLIMIT_NOFILE, &files) == 0;
  }
  // 32 MiB is the largest threshold that glibc accepts: half of the heap of a thread's arena.
  taken &= mallopt(M_MMAP_THRESHOLD, 32 << 20) == 1;
  taken &= mallopt(M_TRIM_THRESHOLD, 2000 << 20) == 1;
  taken &= mallopt(M_TOP_PAD, 64 << 20) == 1;
  if (options.malloc_arenas > 0) taken &= mallopt(M_ARENA_MAX, options.malloc_arenas) == 1;
  return taken;
}

}  // namespace capstan::services
