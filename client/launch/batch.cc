#include "client/launch/batch.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/launch/bundle.h"
#include "client/launch/launchers.h"
#include "client/launch/node.h"
#include "services/clock/clock.h"
#include "services/files/files.h"
#include "services/security/secret_file.h"
#include "services/server/signals.h"

namespace capstan::client {
namespace {

constexpr absl::Duration kBatchLook = absl::Milliseconds(100);  // between reads of the ranks' lines
constexpr absl::Duration kQueueLook = absl::Seconds(3);         // between calls of the scheduler
constexpr absl::Duration kLastLines = absl::Seconds(2);         // for output after the job's end
constexpr absl::Duration kPoliteTimeout = absl::Seconds(10);    // for the ranks, before Delete
constexpr size_t kMaxLine = 64 * 1024;
constexpr size_t kMaxInput = 64 << 20;

void Print(absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody reads it any more; the end of the input follows
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void PrintLine(absl::string_view line) { Print(absl::StrCat(line, "\n")); }

class Batch {
 public:
  Batch(const BatchOptions& options, std::unique_ptr<Scheduler> scheduler)
      : options_(options),
        scheduler_(std::move(scheduler)),
        outputs_(static_cast<size_t>(options.ranks)) {}
  ~Batch() {
    if (folder_.empty()) return;
    const absl::Status status = services::RemoveTree(options_.shared_dir, folder_);
    if (!status.ok()) PrintLine(status.message());
  }

  absl::Status Run() {
    absl::StatusOr<std::string> folder =
        services::MakePrivateDir("capstan-launch", options_.shared_dir);
    if (!folder.ok()) return folder.status();
    folder_ = *std::move(folder);
    const std::string script = absl::StrCat(folder_, "/", kLaunchMarker);
    const absl::Status written = services::WriteFileAtomically(
        script, RankScript(options_, scheduler_->TaskVariable(), folder_),
        {.replace = false, .mode = 0700, .sync = false});
    if (!written.ok()) return written;
    const absl::StatusOr<std::string> job = scheduler_->Submit(script, options_.ranks);
    if (!job.ok()) return job.status();
    PrintLine(absl::StrCat("job ", *job, " with ", options_.ranks, " tasks is submitted"));
    const absl::Status status = Serve();
    // The ranks end because the marker is gone. Those that have not started will not find their
    // script.
    (void)unlink(script.c_str());
    const absl::Duration until = MonotonicNow() + kPoliteTimeout;
    while (!absl::IsAborted(status) && MonotonicNow() < until && AnyRuns()) {
      absl::SleepFor(kBatchLook);
      PassLines();
    }
    scheduler_->Delete();
    PassLines();
    return status;
  }

 private:
  struct Output {
    off_t read = 0;
    std::string rest;  // of a line without its end
    bool begun = false;
    bool ended = false;
  };

  bool AnyRuns() const {
    return std::any_of(outputs_.begin(), outputs_.end(),
                       [](const Output& output) { return output.begun && !output.ended; });
  }
  bool AllEnded() const {
    return std::all_of(outputs_.begin(), outputs_.end(),
                       [](const Output& output) { return output.ended; });
  }

  absl::Status Serve() {
    absl::Duration next_look = MonotonicNow() + kQueueLook;
    while (!AllEnded()) {
      pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
      if (poll(&input, 1, static_cast<int>(absl::ToInt64Milliseconds(kBatchLook))) > 0) {
        const absl::StatusOr<bool> more = PassBundles();
        if (!more.ok()) return more.status();
        if (!*more) return absl::OkStatus();
      }
      if (services::ShutdownSignal::Install().WaitFor(absl::ZeroDuration())) {
        return absl::OkStatus();
      }
      PassLines();
      if (MonotonicNow() < next_look) continue;
      if (absl::Status status = scheduler_->Look(); !status.ok()) {
        // The last output of the ranks may still be on its way through the shared folder.
        for (const absl::Duration until = MonotonicNow() + kLastLines;
             MonotonicNow() < until && !AllEnded();) {
          absl::SleepFor(kBatchLook);
          PassLines();
        }
        return AllEnded() ? absl::OkStatus() : status;
      }
      next_look = MonotonicNow() + kQueueLook;
    }
    return absl::OkStatus();
  }

  // False: the input has ended.
  absl::StatusOr<bool> PassBundles() {
    char block[16 * 1024];
    const ssize_t got = read(STDIN_FILENO, block, sizeof(block));
    if (got < 0) return errno == EINTR || errno == EAGAIN;
    if (got == 0) return false;
    input_.append(block, static_cast<size_t>(got));
    if (input_.size() > kMaxInput) return false;
    for (size_t end = input_.find('\n'); end != std::string::npos; end = input_.find('\n')) {
      const std::string line = input_.substr(0, end);
      input_.erase(0, end + 1);
      const std::optional<int> rank = RankOfBundleLine(line);
      if (!rank.has_value() || *rank < 0 || *rank >= options_.ranks) continue;
      const absl::Status status =
          services::WriteFileAtomically(absl::StrCat(folder_, "/", *rank, ".bundle"), line + "\n",
                                        {.replace = true, .mode = 0600, .sync = false});
      if (!status.ok()) return status;
    }
    return true;
  }

  void PassLines() {
    for (int rank = 0; rank < options_.ranks; ++rank) {
      Output& output = outputs_[static_cast<size_t>(rank)];
      if (!output.ended) PassLinesOf(rank, output);
    }
  }

  void PassLinesOf(int rank, Output& output) {
    // Open it each time, because that makes a network file system look for what others have
    // written.
    const std::string path = absl::StrCat(folder_, "/", rank, ".out");
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return;
    output.begun = true;
    char block[64 * 1024];
    ssize_t got = 0;
    while ((got = pread(fd, block, sizeof(block), output.read)) > 0) {
      output.read += got;
      output.rest.append(block, static_cast<size_t>(got));
      for (size_t end = output.rest.find('\n'); end != std::string::npos;
           end = output.rest.find('\n')) {
        PassLine(rank, output, output.rest.substr(0, end));
        output.rest.erase(0, end + 1);
      }
      if (output.rest.size() > kMaxLine) PassLine(rank, output, std::exchange(output.rest, ""));
    }
    close(fd);
  }

  static void PassLine(int rank, Output& output, const std::string& line) {
    const std::optional<NodeLine> said = ParseNodeLine(line);
    if (!said.has_value()) {  // from the shell that runs the script
      Print(FormatNodeLine({rank, NodeLine::Kind::kOutput, line}));
      return;
    }
    output.ended = output.ended || said->kind == NodeLine::Kind::kEnd;
    PrintLine(line);
  }

  const BatchOptions& options_;
  const std::unique_ptr<Scheduler> scheduler_;
  std::vector<Output> outputs_;  // of the ranks
  std::string folder_;
  std::string input_;  // input not used yet
};

}  // namespace

std::string RankScript(const BatchOptions& options, absl::string_view task_variable,
                       absl::string_view meeting) {
  const std::string folder = ShellQuote(meeting);
  return absl::StrCat(
      "#!/bin/sh\n", "rank=$((", task_variable, " - 1))\n",
      // The scheduler may start a task long after the launch has ended.
      "[ -e ", folder, "/", kLaunchMarker, " ] || exit 0\n", "umask 077\n", "exec >>", folder,
      "/$rank.out 2>&1 </dev/null\n",
      options.folder.empty() ? "" : absl::StrCat("cd ", ShellQuote(options.folder), " || exit\n"),
      "exec ",
      absl::StrJoin(options.node, " ",
                    [](std::string* out, const std::string& word) {
                      absl::StrAppend(out, ShellQuote(word));
                    }),
      " --folder ", folder, " --rank $rank\n");
}

ExitCode RunBatch(const BatchOptions& options) {
  services::KeepMemoryPrivate();
  services::ShutdownSignal::Install();
  std::unique_ptr<Scheduler> scheduler;
  if (options.resource_manager.empty()) {
    scheduler = MakeGridEngine(options.hosts, options.args);
  } else {
    absl::StatusOr<std::unique_ptr<Scheduler>> yarn =
        MakeYarn(options.resource_manager, options.args);
    if (!yarn.ok()) {
      PrintLine(yarn.status().message());
      return kExitUsage;
    }
    scheduler = *std::move(yarn);
  }
  const absl::Status status = Batch(options, std::move(scheduler)).Run();
  if (!status.ok()) PrintLine(status.message());
  return status.ok() ? kExitDone : kExitInternal;
}

}  // namespace capstan::client
