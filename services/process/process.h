// Child processes: started by posix_spawn from one thread that lives as long as its spawner.
//
//   ProcessSpawner spawner;
//   auto task = spawner.Spawn({.binary = *SiblingBinary("capstan_gpu_worker"), .args = {"--task"},
//                              .on_line = ..., .on_exit = ...});
//
// Never a fork: gRPC has threads. The parent-death signal of Linux fires when the *thread* that
// spawned ends, hence the one thread. A child gets its own process group, /dev/null as input (or stdin_fd),
// default signal handling, no file descriptor of ours beyond 0..2 (and pass_fd), and
// CAPSTAN_PARENT_PID; it calls ArmParentDeathSignal first thing in main.
//
// Callbacks run in the spawner's thread, one at a time, without a lock held: they hand work over
// and return. They may call Spawn and Kill, and may destroy a Process. Thread-safe.
#ifndef CAPSTAN_SERVICES_PROCESS_PROCESS_H_
#define CAPSTAN_SERVICES_PROCESS_PROCESS_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace capstan::services {

struct ExitStatus {
  int code = 0;    // of exit(), when signal is 0
  int signal = 0;  // that ended it, else 0
  bool success() const { return code == 0 && signal == 0; }
  std::string ToString() const;  // "exit code 3", "signal 9 (Killed)"
};

enum class OutputStream { kStdout, kStderr };

struct ProcessOptions {
  std::string binary;             // a path; PATH is not searched
  std::vector<std::string> args;  // without argv[0]
  std::vector<std::string> env;   // "NAME=VALUE", beside the environment of this process or instead
  // Gets each line without its end; longer ones in pieces of max_line_bytes; a last line without an
  // end too. Empty function: the child writes to our own stdout and stderr.
  std::function<void(OutputStream, absl::string_view line)> on_line;
  // Called once, after the last on_line. What is left of the child's process group was killed
  // before.
  std::function<void(const ExitStatus&)> on_exit;
  size_t max_line_bytes = 16 * 1024;
  // A descriptor of ours that the child gets as its descriptor 3; -1: none. Borrowed until Spawn
  // has returned.
  int pass_fd = -1;
  // The same for its standard input; -1: /dev/null.
  int stdin_fd = -1;
};

// A child. Its destructor kills the process group and waits for on_exit, unless a callback calls
// it.
class Process {
 public:
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const;
  // Sends `signal` to the whole process group; nothing happens when the child has ended.
  void Kill(int signal);
  // Its end, after on_exit has returned; nullopt: it still runs after `timeout`. Not from a
  // callback.
  std::optional<ExitStatus> WaitFor(absl::Duration timeout);

 private:
  friend class ProcessSpawner;
  struct State;
  explicit Process(std::shared_ptr<State> state);
  const std::shared_ptr<State> state_;
};

class ProcessSpawner {
 public:
  ProcessSpawner();
  // Kills all children that are left and waits for their on_exit. A Process may outlive it.
  ~ProcessSpawner();
  ProcessSpawner(const ProcessSpawner&) = delete;
  ProcessSpawner& operator=(const ProcessSpawner&) = delete;

  // NotFound / PermissionDenied: the binary; ResourceExhausted: processes, memory or descriptors.
  absl::StatusOr<std::unique_ptr<Process>> Spawn(ProcessOptions options);

 private:
  class Reactor;
  const std::unique_ptr<Reactor> reactor_;
};

// In the child, first thing in main: SIGKILL when the spawning thread ends, which is when the
// parent dies. FailedPrecondition: the parent was gone before; exit then.
absl::Status ArmParentDeathSignal(pid_t expected_parent_pid);
// The same with CAPSTAN_PARENT_PID, which it removes from the environment; OK when that is not set:
// the process was started by hand. InvalidArgument: it is no number.
absl::Status ArmParentDeathSignalFromEnvironment();

// The path of `name` in the folder of the running binary (/proc/self/exe). NotFound: no such file.
absl::StatusOr<std::string> SiblingBinary(absl::string_view name);

// `path` where that file is the running binary, else /proc/self/exe, which is it in any case: also
// where an upgrade has put another file in its place since.
std::string SameBinary(const std::string& path);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_PROCESS_PROCESS_H_
