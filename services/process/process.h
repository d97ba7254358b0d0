// Child processes. One thread that lives as long as its spawner starts them by posix_spawn.
//
//   ProcessSpawner spawner;
//   auto task = spawner.Spawn({.binary = *SiblingBinary("capstan_gpu_worker"), .args = {"--task"},
//                              .on_line = ..., .on_exit = ...});
//
// It never forks, because gRPC has threads. Linux sends the parent-death signal when the *thread*
// that spawned the child ends, so a single long-lived thread spawns all children. A child gets its
// own process group, /dev/null as input (or stdin_fd), default signal handling, no other descriptor
// of ours than 0..2 (and pass_fd), and CAPSTAN_PARENT_PID. It must call ArmParentDeathSignal first
// thing in main.
//
// Callbacks run in the spawner's thread, one at a time, without a lock held. They must hand work
// over and return. They may call Spawn and Kill, and may destroy a Process. Thread-safe.
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
  int code = 0;    // of exit(), if signal is 0
  int signal = 0;  // that ended the child, else 0
  bool success() const { return code == 0 && signal == 0; }
  std::string ToString() const;  // "exit code 3", "signal 9 (Killed)"
};

enum class OutputStream { kStdout, kStderr };

struct ProcessOptions {
  std::string binary;             // a path; PATH is not searched
  std::vector<std::string> args;  // without argv[0]
  std::vector<std::string> env;   // "NAME=VALUE"; extends or overrides our own environment
  // Gets each line without its end. Longer lines come in pieces of max_line_bytes. A last line
  // without an end comes, too. If empty, the child writes to our own stdout and stderr.
  std::function<void(OutputStream, absl::string_view line)> on_line;
  // Called once, after the last on_line. The rest of the child's process group has been killed
  // before.
  std::function<void(const ExitStatus&)> on_exit;
  size_t max_line_bytes = 16 * 1024;
  // A descriptor of ours that becomes the child's descriptor 3; -1: none. Borrowed until Spawn
  // returns.
  int pass_fd = -1;
  // The same for the child's standard input; -1: /dev/null.
  int stdin_fd = -1;
};

// A child. The destructor kills the process group and waits for on_exit, unless a callback calls
// the destructor.
class Process {
 public:
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const;
  // Sends `signal` to the whole process group. Does nothing if the child has ended.
  void Kill(int signal);
  // The child's exit status, after on_exit has returned; nullopt: it still runs after `timeout`.
  // Must not be called from a callback.
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
  // Kills all remaining children and waits for their on_exit. A Process may outlive it.
  ~ProcessSpawner();
  ProcessSpawner(const ProcessSpawner&) = delete;
  ProcessSpawner& operator=(const ProcessSpawner&) = delete;

  // NotFound / PermissionDenied: about the binary; ResourceExhausted: too few processes, memory or
  // descriptors.
  absl::StatusOr<std::unique_ptr<Process>> Spawn(ProcessOptions options);

 private:
  class Reactor;
  const std::unique_ptr<Reactor> reactor_;
};

// For the child, first thing in main. The child gets SIGKILL when the spawning thread ends, i.e.
// when the parent dies. FailedPrecondition: the parent is gone already, so exit.
absl::Status ArmParentDeathSignal(pid_t expected_parent_pid);
// The same with CAPSTAN_PARENT_PID, which it removes from the environment. OK if that is not set,
// because then a person started the process. InvalidArgument: it is not a number.
absl::Status ArmParentDeathSignalFromEnvironment();

// The path of `name` in the folder of the running binary (/proc/self/exe). NotFound: there is no
// such file.
absl::StatusOr<std::string> SiblingBinary(absl::string_view name);

// `path` if that file is the running binary, else /proc/self/exe. The latter is the running binary
// even after an upgrade has replaced the file.
std::string SameBinary(const std::string& path);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_PROCESS_PROCESS_H_
