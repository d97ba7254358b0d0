#include "client/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <random>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/job_name.h"
#include "services/files/files.h"

namespace capstan::client {
namespace {

namespace fs = std::filesystem;

constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
constexpr int kRandomLetters = 6;
constexpr int kIdAttempts = 100;

fs::path StateOf(const fs::path& run) { return run / kRunState; }
// The coordinator holds this lock while it lives (coordinator/journal/sqlite_journal.cc).
fs::path LockOf(const fs::path& run) { return StateOf(run) / "lock"; }

bool IsRun(const fs::path& folder) {
  std::error_code ignored;
  if (fs::is_regular_file(folder / "metrics.jsonl", ignored)) return true;
  if (fs::is_regular_file(StateOf(folder) / "journal.db", ignored)) return true;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (fs::is_regular_file(entry.path() / "manifest.json", ignored)) return true;
  }
  return false;
}

fs::file_time_type LastWrite(const fs::path& run) {
  std::error_code ignored;
  const fs::file_time_type log = fs::last_write_time(run / "metrics.jsonl", ignored);
  const fs::file_time_type own = fs::last_write_time(run, ignored);
  return std::max(log, own);
}

// Takes the lock of a run without a coordinator; the caller closes it. -1: there is no lock, or
// somebody else holds it (`taken`).
int TakeLock(const fs::path& run, bool& taken) {
  taken = false;
  const int fd = open(LockOf(run).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return -1;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  taken = errno == EWOULDBLOCK;
  close(fd);
  return -1;
}

// Ids of the runs in `folder` that have a journal, sorted by the time of the last start or resume,
// newest first. The lock file has that time, because only a starting coordinator writes it.
std::vector<std::string> RunsWithJournal(const fs::path& folder) {
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code ignored;
    if (!fs::is_regular_file(StateOf(entry.path()) / "journal.db", ignored)) continue;
    found.emplace_back(fs::last_write_time(LockOf(entry.path()), ignored),
                       entry.path().filename().string());
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> ids;
  for (auto& [time, id] : found) ids.push_back(std::move(id));
  return ids;
}

// Like IsLive, but a run without a lock counts as live while its files are recent.
bool MayBeLive(const fs::path& run) {
  std::error_code ignored;
  if (fs::exists(LockOf(run), ignored)) return IsLive(run.string());
  return fs::file_time_type::clock::now() - LastWrite(run) < absl::ToChronoSeconds(kQuietRun);
}

}  // namespace

absl::StatusOr<std::string> MakeRunFolder(const std::string& storage, const std::string& name) {
  std::random_device random;
  for (int attempt = 0; attempt < kIdAttempts; ++attempt) {
    // The name begins with a letter, so that no job's folder looks like a checkpoint,
    // `<lineage>-<step>`.
    const bool letter = !name.empty() && absl::ascii_islower(static_cast<unsigned char>(name[0]));
    std::string id = absl::StrCat(letter ? "" : "job-", name, "-");
    for (int i = 0; i < kRandomLetters; ++i) id.push_back(kLetters[random() % 36]);
    std::error_code error;
    if (fs::create_directory(fs::path(storage) / id, error)) return id;
    if (error) return services::ErrnoStatus(error.value(), "mkdir", absl::StrCat(storage, "/", id));
  }
  return absl::UnavailableError(
      absl::StrCat(storage, ": ", kIdAttempts, " folders for ", name, " exist already"));
}

absl::StatusOr<std::string> MakeRunState(const std::string& run) {
  const std::string state = StateOf(run).string();
  if (absl::Status status = services::EnsureDir(state, 0700); !status.ok()) return status;
  const std::string path = LockOf(run).string();
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return services::ErrnoStatus(errno, "open", path);
  const absl::Cleanup unlock = [fd] { close(fd); };
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return state;
  if (errno == EWOULDBLOCK) {
    return absl::FailedPreconditionError(absl::StrCat(run, ": another coordinator works here"));
  }
  return "";
}

bool IsLive(const std::string& run) {
  bool taken = false;
  if (const int fd = TakeLock(run, taken); fd >= 0) close(fd);
  return taken;
}

bool IsRunPath(const std::string& name) {
  return absl::StrContains(name, "/") || name == "." || name == "..";
}

absl::StatusOr<std::string> FindRunFolder(const std::string& name) {
  const std::string folder = IsRunPath(name) ? name : absl::StrCat(kDefaultRunsFolder, "/", name);
  for (const std::string& place : {folder, name}) {
    std::error_code ignored;
    if (fs::is_regular_file(StateOf(place) / "journal.db", ignored)) return place;
  }
  std::error_code error;
  if (!IsRunPath(name) && !fs::exists(folder, error)) {
    const std::vector<std::string> ids = RunsWithJournal(kDefaultRunsFolder);
    const bool last = name == kLastJob;
    if (last && ids.empty()) {
      return absl::NotFoundError(
          absl::StrCat(kDefaultRunsFolder, " has no run to resume or to view"));
    }
    const absl::StatusOr<std::string> id = MatchJob(last ? ids.front() : name, ids);
    if (id.ok()) return absl::StrCat(kDefaultRunsFolder, "/", *id);
    if (!absl::IsNotFound(id.status())) return id.status();
  }
  if (!fs::is_directory(folder, error)) {
    return absl::NotFoundError(absl::StrCat(folder, ": there is no such run folder"));
  }
  return absl::NotFoundError(absl::StrCat(folder, ": has no ", kRunState,
                                          "/journal.db, so it is not a run that can be resumed or "
                                          "viewed; runs of earlier versions have none"));
}

absl::Status CheckRunsIn(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return absl::NotFoundError(absl::StrCat(folder, ": there is no such folder"));
  }
  if (fs::is_regular_file(StateOf(folder) / "journal.db", error)) return absl::OkStatus();
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code ignored;
    if (fs::is_regular_file(StateOf(entry.path()) / "journal.db", ignored)) return absl::OkStatus();
  }
  if (error) return services::ErrnoStatus(error.value(), "list", folder);
  return absl::NotFoundError(absl::StrCat(folder, ": has no run that can be viewed, no */",
                                          kRunState,
                                          "/journal.db; runs of earlier versions have "
                                          "none"));
}

std::string RunName(const std::string& folder) {
  const fs::path path = fs::path(folder).lexically_normal();
  std::error_code error;
  const bool ours = fs::equivalent(path.parent_path(), kDefaultRunsFolder, error);
  return ours ? path.filename().string() : path.string();
}

absl::StatusOr<std::vector<FoundRun>> FindRuns(const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return std::vector<FoundRun>{};
  std::vector<std::pair<fs::file_time_type, fs::path>> found;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code ignored;
    if (!entry.is_symlink(ignored) && entry.is_directory(ignored) && IsRun(entry.path())) {
      found.emplace_back(LastWrite(entry.path()), entry.path());
    }
  }
  if (error)
    return absl::UnavailableError(absl::StrCat("cannot list ", folder, ": ", error.message()));
  std::sort(found.rbegin(), found.rend());
  std::vector<FoundRun> runs;
  for (const auto& [time, path] : found) {
    runs.push_back({path.filename().string(), MayBeLive(path)});
  }
  return runs;
}

absl::StatusOr<RemovedRuns> RemoveOldRuns(const std::string& folder, int keep) {
  const absl::StatusOr<std::vector<FoundRun>> runs = FindRuns(folder);
  if (!runs.ok()) return runs.status();
  RemovedRuns out;
  for (size_t i = static_cast<size_t>(std::max(keep, 0)); i < runs->size(); ++i) {
    const FoundRun& run = (*runs)[i];
    const fs::path path = fs::path(folder) / run.job_id;
    // The lock is held until the folder is gone, so that nobody resumes the run meanwhile.
    bool taken = false;
    const int lock = TakeLock(path, taken);
    const absl::Cleanup unlock = [lock] {
      if (lock >= 0) close(lock);
    };
    if (run.live || taken) {
      out.live.push_back(run.job_id);
      continue;
    }
    std::error_code error;
    fs::remove_all(path, error);
    if (error)
      return absl::UnavailableError(
          absl::StrCat("cannot remove ", path.string(), ": ", error.message()));
    out.removed.push_back(run.job_id);
  }
  return out;
}

}  // namespace capstan::client
