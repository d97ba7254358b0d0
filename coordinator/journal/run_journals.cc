#include "coordinator/journal/run_journals.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "capstan/coordinator/v1/durable.pb.h"
#include "coordinator/core/core.h"
#include "coordinator/core/metric_history.h"
#include "coordinator/journal/sqlite_journal.h"
#include "services/files/files.h"
#include "services/logging/log.h"

namespace capstan::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxRunJournalBytes = int64_t{256} << 20;
constexpr int kReadAttempts = 5;  // of a journal that is written meanwhile
constexpr int kMostPoints = 1 << 20;

struct RunJob {
  v1::DurableJob job;
  std::map<int64_t, job::v1::Event> events;
  std::map<int64_t, std::string> history;
  bool own_folder = false;  // the folder has the job's name
};

fs::path JournalOf(const fs::path& run) { return run / "state" / "journal.db"; }

// Whether a coordinator works there, that is, holds the lock of its state.
bool HasCoordinator(const fs::path& run) {
  const int fd = ::open((run / "state" / "lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const absl::Cleanup close = [fd] { ::close(fd); };
  return ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

// Copies the journal of a running coordinator. The mark is copied first. So a copy of the journal
// holds at least the commits that the mark counts; if it does not, it is refused.
absl::Status CopyJournal(const fs::path& run, const std::string& to) {
  const fs::path from = JournalOf(run);
  for (const char* name : {"journal.mark", "journal.db", "journal.db-wal"}) {
    const absl::StatusOr<std::string> bytes =
        services::ReadWholeFile((from.parent_path() / name).string(), kMaxRunJournalBytes);
    if (absl::IsNotFound(bytes.status())) continue;
    if (!bytes.ok()) return bytes.status();
    const absl::Status status = services::WriteFileAtomically(absl::StrCat(to, "/", name), *bytes,
                                                              {.mode = 0600, .sync = false});
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<core::DurableState> ReadRunCopy(const fs::path& run) {
  const absl::StatusOr<std::string> folder = services::MakePrivateDir("capstan-look");
  if (!folder.ok()) return folder.status();
  const absl::Cleanup remove = [&folder] { (void)services::RemoveTree("/tmp", *folder); };
  if (absl::Status status = CopyJournal(run, *folder); !status.ok()) return status;
  JournalOptions options;
  options.reserve_bytes = 0;
  options.copy_of = JournalOf(run).parent_path().string();
  const absl::StatusOr<std::unique_ptr<SqliteJournal>> journal =
      SqliteJournal::Open(*folder, options);
  if (!journal.ok()) return journal.status();
  return (*journal)->Load();
}

absl::StatusOr<core::DurableState> ReadOne(const fs::path& run) {
  absl::StatusOr<core::DurableState> state = absl::UnknownError("");
  for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
    state = ReadRunCopy(run);
    if (state.ok() || !HasCoordinator(run)) break;
  }
  if (state.ok()) return state;
  return absl::Status(state.status().code(),
                      absl::StrCat(JournalOf(run).string(), ": ", state.status().message()));
}

// The record is saved only at important events, so the history is newer.
void CatchUp(RunJob& run) {
  core::MetricHistory history(kMostPoints);
  for (const auto& [number, page] : run.history) {
    if (!history.LoadPage(number, page)) return;  // Restore refuses the page by its name
  }
  job::v1::Progress& progress = *run.job.mutable_progress()->mutable_progress();
  if (history.points().empty() || history.points().back().step() <= progress.step()) return;
  const job::v1::MetricPoint& last = history.points().back();
  progress.set_step(last.step());
  if (last.has_loss()) progress.set_loss(last.loss());
  if (last.has_accuracy()) progress.set_accuracy(last.accuracy());
}

void SetInterrupted(v1::DurableJob& job) {
  job.set_state(common::v1::JOB_STATE_SUSPENDED);
  job.set_reason(core::kInterrupted);
  job.clear_cancel_asked();
  const int manifests = job.manifests_size();
  job.mutable_progress()->set_message(absl::StrCat(
      "its services ended before it did; capstan run --resume goes on from ",
      manifests == 0 ? std::string("the initial weights")
                     : absl::StrCat("checkpoint ", job.manifests(manifests - 1).saved().id())));
  job.mutable_progress()->mutable_progress()->clear_eta_seconds();
}

bool HasEnded(common::v1::JobState state) {
  return state == common::v1::JOB_STATE_SUCCEEDED || state == common::v1::JOB_STATE_FAILED ||
         state == common::v1::JOB_STATE_CANCELLED;
}

absl::Status AddRun(const fs::path& folder, std::vector<RunJob>& runs) {
  // Before the read: if the run ends meanwhile, its journal has the end.
  const bool lives = HasCoordinator(folder);
  absl::StatusOr<core::DurableState> state = ReadOne(folder);
  if (!state.ok()) return state.status();
  for (const auto& [id, bytes] : state->jobs) {
    RunJob run;
    if (!run.job.ParseFromString(bytes)) {
      return absl::DataLossError(
          absl::StrCat(JournalOf(folder).string(), ": the record of job ", id, " is damaged"));
    }
    run.events = std::move(state->events[id]);
    run.history = std::move(state->history[id]);
    run.own_folder = folder.filename() == id;
    CatchUp(run);
    if (!lives && !HasEnded(run.job.state())) SetInterrupted(run.job);
    runs.push_back(std::move(run));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<core::DurableState> ReadRunJournals(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> folders;
  if (fs::is_regular_file(JournalOf(folder), error)) {
    // "out/run/." needs a name, too.
    folders.push_back(fs::weakly_canonical(folder, error));
  } else {
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      std::error_code ignored;
      if (!entry.is_symlink(ignored) && fs::is_regular_file(JournalOf(entry.path()), ignored)) {
        folders.push_back(entry.path());
      }
    }
  }
  if (error) return services::ErrnoStatus(error.value(), "list", folder);
  if (folders.empty()) {
    return absl::NotFoundError(
        absl::StrCat(folder, ": there is no run here, no */state/journal.db"));
  }
  std::vector<RunJob> runs;
  for (const fs::path& run : folders) {
    const absl::Status status = AddRun(run, runs);
    if (status.ok()) continue;
    if (folders.size() == 1) return status;
    services::Log(services::kWarning, "run_not_read").Kv("run", run.string()).Kv("status", status);
  }
  // If a run was copied, takes the copy whose folder has the job's name.
  const auto key = [](const RunJob& run) {
    const auto& at = run.job.submitted_at();
    return std::tuple(at.seconds(), at.nanos(), run.job.job_id(), !run.own_folder);
  };
  std::sort(runs.begin(), runs.end(),
            [&key](const RunJob& a, const RunJob& b) { return key(a) < key(b); });
  core::DurableState out;
  int64_t sequence = 0;
  for (RunJob& run : runs) {
    const std::string id = run.job.job_id();
    if (out.jobs.count(id) > 0) continue;
    run.job.set_sequence(++sequence);
    run.job.set_request_id(absl::StrCat("look-", sequence));
    out.jobs[id] = run.job.SerializeAsString();
    out.events[id] = std::move(run.events);
    out.history[id] = std::move(run.history);
  }
  return out;
}

}  // namespace capstan::coordinator
