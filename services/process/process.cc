#include "services/process/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "services/clock/clock.h"
#include "services/sync/mutex.h"

namespace capstan::services {
namespace {

constexpr char kParentPidVariable[] = "CAPSTAN_PARENT_PID";
// A grandchild that left the process group may keep a pipe open. Do not wait for its end for ever.
constexpr absl::Duration kOutputGrace = absl::Seconds(1);
// Without pidfd in the kernel, check this often whether children have ended.
constexpr int kPollWithoutPidfdMs = 20;

absl::Status SpawnError(int error, const std::string& binary) {
  const std::string message = absl::StrCat("start ", binary, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case EAGAIN:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::FailedPreconditionError(message);
  }
}

// Our environment plus the variables of `extra`, which replace ours.
std::vector<std::string> MergedEnvironment(const std::vector<std::string>& extra) {
  std::vector<std::string> merged = extra;
  merged.push_back(absl::StrCat(kParentPidVariable, "=", getpid()));
  const size_t count = merged.size();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const absl::string_view name = text.substr(0, text.find('='));
    const bool replaced = std::any_of(
        merged.begin(), merged.begin() + static_cast<ptrdiff_t>(count),
        [&](const std::string& own) {
          return absl::StartsWith(own, name) && own.size() > name.size() && own[name.size()] == '=';
        });
    if (!replaced) merged.emplace_back(text);
  }
  return merged;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

void CloseAndForget(int& fd) {
  if (fd >= 0) close(std::exchange(fd, -1));
}

}  // namespace

std::string ExitStatus::ToString() const {
  if (signal != 0) return absl::StrCat("signal ", signal, " (", strsignal(signal), ")");
  return absl::StrCat("exit code ", code);
}

struct Process::State {
  ProcessOptions options;
  pid_t pid = -1;
  // Only used by the reactor's thread.
  int pidfd = -1;
  int output[2] = {-1, -1};  // read ends: stdout, stderr
  std::string partial[2];    // bytes since the last line end
  bool exited = false;
  absl::Duration exited_at;
  std::thread::id reactor_thread;  // by value: a Process may outlive its spawner
  bool InReactorThread() const { return std::this_thread::get_id() == reactor_thread; }

  Mutex mu;
  CondVar cv;
  bool reaped ABSL_GUARDED_BY(mu) = false;  // the pid may belong to another process now
  bool done ABSL_GUARDED_BY(mu) = false;    // on_exit has returned
  ExitStatus status ABSL_GUARDED_BY(mu);

  void Kill(int signal) {
    MutexLock lock(mu);
    if (!reaped) kill(-pid, signal);
  }
};

// The thread that spawns children, reads their output and waits for their ends.
class ProcessSpawner::Reactor {
 public:
  Reactor() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    CAPSTAN_CHECK(wake_ >= 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~Reactor() {
    {
      MutexLock lock(mu_);
      stopping_ = true;
    }
    Wake();
    thread_.join();
    close(wake_);
  }

  absl::StatusOr<std::shared_ptr<Process::State>> Spawn(ProcessOptions options) {
    auto state = std::make_shared<Process::State>();
    state->options = std::move(options);
    state->reactor_thread = thread_.get_id();
    if (state->InReactorThread()) {
      if (absl::Status status = SpawnNow(*state); !status.ok()) return status;
      children_.push_back(state);
      return state;
    }
    Request request{.state = state, .status = {}, .answered = false};
    MutexLock lock(mu_);
    requests_.push_back(&request);
    Wake();
    while (!request.answered) answered_cv_.Wait(mu_);
    if (!request.status.ok()) return request.status;
    return state;
  }

 private:
  struct Request {
    std::shared_ptr<Process::State> state;
    absl::Status status;
    bool answered;
  };

  void Wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
  }

  void Run() {
    while (true) {
      bool stopping;
      std::deque<Request*> requests;
      {
        MutexLock lock(mu_);
        stopping = stopping_;
        requests.swap(requests_);
      }
      for (Request* request : requests) {
        absl::Status status = stopping ? absl::CancelledError("the spawner is going away")
                                       : SpawnNow(*request->state);
        if (status.ok()) children_.push_back(request->state);
        MutexLock lock(mu_);
        request->status = std::move(status);
        request->answered = true;
        answered_cv_.NotifyAll();
      }
      if (stopping) {
        for (const auto& child : children_) child->Kill(SIGKILL);
        if (children_.empty()) return;
      }
      PollOnce();
    }
  }

  void PollOnce() {
    std::vector<pollfd> fds = {{.fd = wake_, .events = POLLIN, .revents = 0}};
    int timeout_ms = -1;
    // Callbacks may add children, so work on a copy of the list.
    const std::vector<std::shared_ptr<Process::State>> children = children_;
    for (const auto& child : children) {
      for (const int fd : {child->output[0], child->output[1], child->exited ? -1 : child->pidfd}) {
        fds.push_back({.fd = fd, .events = POLLIN, .revents = 0});  // poll skips negative ones
      }
      if (child->exited || child->pidfd < 0) timeout_ms = kPollWithoutPidfdMs;
    }
    const int rc = poll(fds.data(), fds.size(), timeout_ms);
    CAPSTAN_CHECK(rc >= 0 || errno == EINTR);
    if (rc < 0) return;
    uint64_t drained;
    [[maybe_unused]] const ssize_t got = read(wake_, &drained, sizeof(drained));
    for (size_t i = 0; i < children.size(); ++i) {
      Process::State& child = *children[i];
      for (int stream = 0; stream < 2; ++stream) {
        if (fds[1 + 3 * i + stream].revents != 0) ReadOutput(child, stream);
      }
      if (!child.exited && (child.pidfd < 0 || fds[1 + 3 * i + 2].revents != 0)) TryReap(child);
      const bool silent = child.output[0] < 0 && child.output[1] < 0;
      if (child.exited && (silent || MonotonicNow() - child.exited_at > kOutputGrace)) {
        Finish(children[i]);
      }
    }
  }

  void ReadOutput(Process::State& child, int stream) {
    char block[16 * 1024];
    const ssize_t got = read(child.output[stream], block, sizeof(block));
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (got <= 0) {
      CloseAndForget(child.output[stream]);
      if (!child.partial[stream].empty()) EmitLine(child, stream, child.partial[stream]);
      child.partial[stream].clear();
      return;
    }
    std::string& partial = child.partial[stream];
    partial.append(block, static_cast<size_t>(got));
    size_t start = 0;
    while (start < partial.size()) {
      const size_t end = partial.find('\n', start);
      const size_t length = (end == std::string::npos ? partial.size() : end) - start;
      if (length > child.options.max_line_bytes) {
        EmitLine(child, stream,
                 absl::string_view(partial).substr(start, child.options.max_line_bytes));
        start += child.options.max_line_bytes;
      } else if (end != std::string::npos) {
        EmitLine(child, stream, absl::string_view(partial).substr(start, length));
        start = end + 1;
      } else {
        break;
      }
    }
    partial.erase(0, start);
  }

  static void EmitLine(Process::State& child, int stream, absl::string_view line) {
    child.options.on_line(stream == 0 ? OutputStream::kStdout : OutputStream::kStderr, line);
  }

  static void TryReap(Process::State& child) {
    siginfo_t info = {};
    const auto id = static_cast<id_t>(child.pid);
    if (waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    MutexLock lock(child.mu);
    // While the leader is a zombie, no other group can get its id. So end the rest now.
    kill(-child.pid, SIGKILL);
    waitid(P_PID, id, &info, WEXITED | WNOHANG);
    child.reaped = true;
    if (info.si_code == CLD_EXITED) {
      child.status = {.code = info.si_status, .signal = 0};
    } else {
      child.status = {.code = 0, .signal = info.si_status};
    }
    child.exited = true;
    child.exited_at = MonotonicNow();
  }

  void Finish(const std::shared_ptr<Process::State>& child) {
    for (int stream = 0; stream < 2; ++stream) {
      CloseAndForget(child->output[stream]);
      if (!child->partial[stream].empty()) EmitLine(*child, stream, child->partial[stream]);
    }
    CloseAndForget(child->pidfd);
    children_.erase(std::remove(children_.begin(), children_.end(), child), children_.end());
    ExitStatus status;
    {
      MutexLock lock(child->mu);
      status = child->status;
    }
    if (child->options.on_exit) child->options.on_exit(status);
    // Destroy what the callbacks own before anybody learns that the process has ended.
    child->options.on_exit = nullptr;
    child->options.on_line = nullptr;
    MutexLock lock(child->mu);
    child->done = true;
    child->cv.NotifyAll();
  }

  static absl::Status SpawnNow(Process::State& child) {
    const ProcessOptions& options = child.options;
    // posix_spawn reports a missing binary in its result only on some systems, so check first.
    if (access(options.binary.c_str(), X_OK) != 0) return SpawnError(errno, options.binary);
    int pipes[2][2] = {{-1, -1}, {-1, -1}};
    const bool piped = static_cast<bool>(options.on_line);
    int error = 0;
    for (auto& pair : pipes) {
      if (piped && error == 0 && pipe2(pair, O_CLOEXEC) != 0) error = errno;
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (options.stdin_fd >= 0) {
      posix_spawn_file_actions_adddup2(&actions, options.stdin_fd, 0);
    } else {
      posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    }
    if (piped) {
      posix_spawn_file_actions_adddup2(&actions, pipes[0][1], 1);
      posix_spawn_file_actions_adddup2(&actions, pipes[1][1], 2);
    }
    // dup2 of 3 to itself clears FD_CLOEXEC here (POSIX since 2024, glibc since 2.29).
    if (options.pass_fd >= 0) posix_spawn_file_actions_adddup2(&actions, options.pass_fd, 3);
    posix_spawn_file_actions_addclosefrom_np(&actions, options.pass_fd >= 0 ? 4 : 3);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t all;
    sigset_t none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    std::vector<std::string> args = {options.binary};
    args.insert(args.end(), options.args.begin(), options.args.end());
    std::vector<std::string> env = MergedEnvironment(options.env);
    if (error == 0) {
      error = posix_spawn(&child.pid, options.binary.c_str(), &actions, &attributes,
                          Pointers(args).data(), Pointers(env).data());
    }
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    for (int stream = 0; stream < 2; ++stream) {
      CloseAndForget(pipes[stream][1]);
      if (error != 0) CloseAndForget(pipes[stream][0]);
      child.output[stream] = pipes[stream][0];
    }
    if (error != 0) return SpawnError(error, options.binary);
    child.pidfd = static_cast<int>(syscall(SYS_pidfd_open, child.pid, 0));
    return absl::OkStatus();
  }

  const int wake_;
  std::vector<std::shared_ptr<Process::State>> children_;  // only used by the thread
  Mutex mu_;
  CondVar answered_cv_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Request*> requests_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

Process::Process(std::shared_ptr<State> state) : state_(std::move(state)) {}

Process::~Process() {
  Kill(SIGKILL);
  if (!state_->InReactorThread()) WaitFor(absl::InfiniteDuration());
}

pid_t Process::pid() const { return state_->pid; }

void Process::Kill(int signal) { state_->Kill(signal); }

std::optional<ExitStatus> Process::WaitFor(absl::Duration timeout) {
  const absl::Duration start = MonotonicNow();
  MutexLock lock(state_->mu);
  while (!state_->done) {
    const absl::Duration left = timeout - (MonotonicNow() - start);
    if (left <= absl::ZeroDuration()) return std::nullopt;
    state_->cv.WaitWithTimeout(state_->mu, left);
  }
  return state_->status;
}

ProcessSpawner::ProcessSpawner() : reactor_(std::make_unique<Reactor>()) {}

ProcessSpawner::~ProcessSpawner() = default;

absl::StatusOr<std::unique_ptr<Process>> ProcessSpawner::Spawn(ProcessOptions options) {
  absl::StatusOr<std::shared_ptr<Process::State>> state = reactor_->Spawn(std::move(options));
  if (!state.ok()) return state.status();
  return std::unique_ptr<Process>(new Process(*std::move(state)));
}

absl::Status ArmParentDeathSignal(pid_t expected_parent_pid) {
  CAPSTAN_CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
  // If the parent had died before the prctl, no signal would ever come.
  if (getppid() == expected_parent_pid) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("parent: got pid ", getppid(), ", want ",
                                                    expected_parent_pid, "; it has ended"));
}

absl::Status ArmParentDeathSignalFromEnvironment() {
  const char* const text = std::getenv(kParentPidVariable);
  if (text == nullptr) return absl::OkStatus();
  pid_t parent = 0;
  if (!absl::SimpleAtoi(text, &parent)) {
    return absl::InvalidArgumentError(
        absl::StrCat(kParentPidVariable, ": got '", text, "', want a process id"));
  }
  unsetenv(kParentPidVariable);
  return ArmParentDeathSignal(parent);
}

absl::StatusOr<std::string> SiblingBinary(absl::string_view name) {
  char self[4096];
  const ssize_t size = readlink("/proc/self/exe", self, sizeof(self));
  if (size <= 0 || size == static_cast<ssize_t>(sizeof(self))) {
    return absl::NotFoundError(absl::StrCat("readlink /proc/self/exe: ", std::strerror(errno)));
  }
  const absl::string_view path(self, static_cast<size_t>(size));
  std::string sibling = absl::StrCat(path.substr(0, path.rfind('/') + 1), name);
  if (access(sibling.c_str(), X_OK) != 0) return SpawnError(errno, sibling);
  return sibling;
}

std::string SameBinary(const std::string& path) {
  constexpr char kSelf[] = "/proc/self/exe";
  struct stat there = {};
  struct stat self = {};
  const bool same = stat(path.c_str(), &there) == 0 && stat(kSelf, &self) == 0 &&
                    there.st_dev == self.st_dev && there.st_ino == self.st_ino;
  return same ? path : kSelf;
}

}  // namespace capstan::services
