#include "services/process/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <future>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/sync/mutex.h"

namespace capstan::services {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// Collects the output of a child. Read it only after WaitFor has returned the exit status.
struct Transcript {
  std::function<void(OutputStream, absl::string_view)> OnLine() {
    return [this](OutputStream stream, absl::string_view line) {
      lines.push_back(absl::StrCat(stream == OutputStream::kStdout ? "out:" : "err:", line));
    };
  }
  std::vector<std::string> lines;
};

ProcessOptions Shell(const std::string& script, Transcript* transcript) {
  ProcessOptions options{.binary = "/bin/sh", .args = {"-c", script}};
  if (transcript != nullptr) options.on_line = transcript->OnLine();
  return options;
}

constexpr absl::Duration kLimit = absl::Seconds(30);

TEST(ProcessTest, LinesOfBothStreamsThenTheExitCode) {
  ProcessSpawner spawner;
  Transcript transcript;
  ProcessOptions options =
      Shell("echo one; echo two >&2; printf 'last, without an end'; exit 3", &transcript);
  int exits = 0;
  options.on_exit = [&](const ExitStatus& status) {
    ++exits;
    transcript.lines.push_back(status.ToString());
  };
  auto process = spawner.Spawn(std::move(options));
  ASSERT_TRUE(process.ok()) << process.status();
  const auto status = (*process)->WaitFor(kLimit);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code, 3);
  EXPECT_FALSE(status->success());
  EXPECT_EQ(exits, 1);
  EXPECT_THAT(transcript.lines, UnorderedElementsAre("out:one", "err:two",
                                                     "out:last, without an end", "exit code 3"));
  EXPECT_EQ(transcript.lines.back(), "exit code 3");
}

TEST(ProcessTest, LongLinesComeInPieces) {
  ProcessSpawner spawner;
  Transcript transcript;
  ProcessOptions options = Shell("printf 'abcdefgh\\nij\\n'", &transcript);
  options.max_line_bytes = 3;
  auto process = *spawner.Spawn(std::move(options));
  ASSERT_TRUE(process->WaitFor(kLimit).has_value());
  EXPECT_THAT(transcript.lines, ElementsAre("out:abc", "out:def", "out:gh", "out:ij"));
}

TEST(ProcessTest, ChildHasItsGroupItsEnvironmentAndNoOtherDescriptor) {
  ProcessSpawner spawner;
  Transcript transcript;
  int leak[2];
  ASSERT_EQ(pipe(leak), 0);  // without close-on-exec
  ProcessOptions options = Shell(
      "read x || echo no-input; echo $GREETING; echo parent=$CAPSTAN_PARENT_PID; "
      "[ $(ps -o pgid= -p $$ 2>/dev/null || echo $$) = $$ ] && echo own-group; "
      "[ -e /proc/$$/fd/" +
          absl::StrCat(leak[0]) + " ] || echo closed",
      &transcript);
  options.env = {"GREETING=hello"};
  auto process = *spawner.Spawn(std::move(options));
  ASSERT_TRUE(process->WaitFor(kLimit).has_value());
  close(leak[0]);
  close(leak[1]);
  EXPECT_THAT(transcript.lines,
              ElementsAre("out:no-input", "out:hello", absl::StrCat("out:parent=", getpid()),
                          "out:own-group", "out:closed"));
}

TEST(ProcessTest, APassedDescriptorIsTheChildsThird) {
  int pair[2];
  ASSERT_EQ(pipe2(pair, O_CLOEXEC), 0);
  ProcessSpawner spawner;
  ProcessOptions options = Shell(
      "echo through >&3; for fd in 4 5 6 7 8 9; do [ -e /proc/$$/fd/$fd ] && echo open $fd; done; "
      "echo end",
      nullptr);
  Transcript transcript;
  options.on_line = transcript.OnLine();
  options.pass_fd = pair[1];
  auto process = *spawner.Spawn(std::move(options));
  close(pair[1]);
  char text[16] = {};
  EXPECT_EQ(read(pair[0], text, sizeof(text)), 8);
  EXPECT_STREQ(text, "through\n");
  close(pair[0]);
  ASSERT_TRUE(process->WaitFor(kLimit).has_value());
  EXPECT_THAT(transcript.lines, ElementsAre("out:end"));  // nothing above 3
}

TEST(ProcessTest, ItsInputEndsWithOurEndOfThePipe) {
  int pair[2];
  ASSERT_EQ(pipe2(pair, O_CLOEXEC), 0);
  ProcessSpawner spawner;
  Transcript transcript;
  ProcessOptions options = Shell("while read -r line; do echo got $line; done; echo end", nullptr);
  options.on_line = transcript.OnLine();
  options.stdin_fd = pair[0];
  auto process = *spawner.Spawn(std::move(options));
  close(pair[0]);
  ASSERT_EQ(write(pair[1], "one\n", 4), 4);
  EXPECT_FALSE(process->WaitFor(absl::ZeroDuration()).has_value());
  close(pair[1]);
  ASSERT_TRUE(process->WaitFor(kLimit).has_value());
  EXPECT_THAT(transcript.lines, ElementsAre("out:got one", "out:end"));
}

TEST(ProcessTest, KillEndsTheChildWithTheSignal) {
  ProcessSpawner spawner;
  std::promise<void> started;
  ProcessOptions options{.binary = "/bin/sh", .args = {"-c", "sleep 1000 & echo up; wait"}};
  options.on_line = [&started](OutputStream, absl::string_view) { started.set_value(); };
  auto process = *spawner.Spawn(std::move(options));
  started.get_future().wait();
  EXPECT_FALSE(process->WaitFor(absl::ZeroDuration()).has_value());
  process->Kill(SIGTERM);
  const auto status = process->WaitFor(kLimit);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->signal, SIGTERM);
  EXPECT_EQ(status->ToString(), "signal 15 (Terminated)");
  process->Kill(SIGTERM);  // no effect
}

TEST(ProcessTest, RestOfTheGroupEndsWithItsLeader) {
  ProcessSpawner spawner;
  Transcript transcript;
  // The sleep keeps the pipes open. If the group were not killed, only the grace period would end
  // the wait.
  auto process = *spawner.Spawn(Shell("sleep 1000 & echo done", &transcript));
  const auto status = process->WaitFor(kLimit);
  ASSERT_TRUE(status.has_value());
  EXPECT_TRUE(status->success());
  EXPECT_THAT(transcript.lines, ElementsAre("out:done"));
}

TEST(ProcessTest, DestructorKillsAndCallbackMaySpawnAgain) {
  std::promise<int> code;
  ProcessSpawner spawner;
  std::unique_ptr<Process> second;
  Mutex mu;
  {
    ProcessOptions options = Shell("exec sleep 1000", nullptr);
    options.on_exit = [&](const ExitStatus& first) {
      ProcessOptions next = Shell("exit 7", nullptr);
      next.on_exit = [&code](const ExitStatus& status) { code.set_value(status.code); };
      EXPECT_EQ(first.signal, SIGKILL);
      MutexLock lock(mu);
      second = *spawner.Spawn(std::move(next));
    };
    const auto process = *spawner.Spawn(std::move(options));
  }
  EXPECT_EQ(code.get_future().get(), 7);
}

TEST(ProcessTest, SpawnerEndsItsChildren) {
  std::promise<int> signal;
  std::unique_ptr<Process> process;
  {
    ProcessSpawner spawner;
    ProcessOptions options = Shell("exec sleep 1000", nullptr);
    options.on_exit = [&signal](const ExitStatus& status) { signal.set_value(status.signal); };
    process = *spawner.Spawn(std::move(options));
  }
  EXPECT_EQ(signal.get_future().get(), SIGKILL);
}

TEST(ProcessTest, MissingBinaryIsNamed) {
  ProcessSpawner spawner;
  const auto process = spawner.Spawn({.binary = "/no/such/binary"});
  EXPECT_EQ(process.status().ToString(),
            "NOT_FOUND: start /no/such/binary: No such file or directory");
  EXPECT_EQ(SiblingBinary("no_such_binary").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(*SiblingBinary("capstan_process_test"), HasSubstr("/capstan_process_test"));
}

// An upgrade of the package replaces the file of the running binary.
TEST(ProcessTest, WhatRunsIsStartedAgainAlsoWhereItsFileWasReplaced) {
  const std::string self = *SiblingBinary("capstan_process_test");
  EXPECT_EQ(SameBinary(self), self);
  EXPECT_EQ(SameBinary("/proc/self/exe"), "/proc/self/exe");
  EXPECT_EQ(SameBinary("/bin/sh"), "/proc/self/exe");
  EXPECT_EQ(SameBinary("/no/such/binary"), "/proc/self/exe");
}

// The parent is killed. The leaf below it must not survive.
TEST(ProcessTest, ChildDiesWithItsParent) {
  ProcessSpawner spawner;
  std::promise<pid_t> leaf_pid;
  ProcessOptions options{.binary = *SiblingBinary("capstan_process_test"), .args = {"--middle"}};
  options.on_line = [&leaf_pid](OutputStream, absl::string_view line) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(line, &pid)) leaf_pid.set_value(pid);
  };
  auto middle = *spawner.Spawn(std::move(options));
  const pid_t leaf = leaf_pid.get_future().get();
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, leaf, 0));
  ASSERT_GE(pidfd, 0);
  ASSERT_EQ(kill(middle->pid(), SIGKILL), 0);  // only the middle one; the leaf has its own group
  pollfd entry = {.fd = pidfd, .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&entry, 1, 20'000), 1);
  close(pidfd);
}

TEST(ProcessTest, ParentThatIsGoneIsNoticed) {
  EXPECT_EQ(ArmParentDeathSignal(1 << 30).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(setenv("CAPSTAN_PARENT_PID", "x", 1), 0);
  EXPECT_EQ(ArmParentDeathSignalFromEnvironment().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(unsetenv("CAPSTAN_PARENT_PID"), 0);
  EXPECT_TRUE(ArmParentDeathSignalFromEnvironment().ok());
}

// The other roles of this binary, for ChildDiesWithItsParent.
int Middle() {
  ProcessSpawner spawner;
  auto leaf = spawner.Spawn({.binary = *SiblingBinary("capstan_process_test"), .args = {"--leaf"}});
  if (!leaf.ok()) return 1;
  (*leaf)->WaitFor(absl::InfiniteDuration());
  return 0;
}

int Leaf() {
  if (!ArmParentDeathSignalFromEnvironment().ok()) return 1;
  std::printf("%d\n", getpid());
  std::fflush(stdout);
  while (true) pause();
}

}  // namespace
}  // namespace capstan::services

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--middle") == 0) return capstan::services::Middle();
  if (argc == 2 && std::strcmp(argv[1], "--leaf") == 0) return capstan::services::Leaf();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
