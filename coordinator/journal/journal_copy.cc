#include "coordinator/journal/journal_copy.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "capstan/common/v1/common.pb.h"
#include "capstan/coordinator/v1/durable.pb.h"
#include "coordinator/journal/folder_lock.h"
#include "services/files/files.h"

namespace capstan::coordinator {
namespace {

constexpr char kDatabase[] = "journal.db";
constexpr char kLog[] = "journal.db-wal";
constexpr char kMark[] = "journal.mark";
constexpr size_t kCopyBlock = size_t{1} << 20;

bool IsThere(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

std::string WithoutSlash(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

absl::Status CopyFile(const std::string& from, const std::string& to) {
  const int fd = ::open(from.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return services::ErrnoStatus(errno, "open", from);
  absl::Cleanup close = [fd] { ::close(fd); };
  auto file = services::AtomicFile::Create(to, {.mode = 0600});
  if (!file.ok()) return file.status();
  std::string block(kCopyBlock, '\0');
  for (;;) {
    const ssize_t size = ::read(fd, block.data(), block.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return services::ErrnoStatus(errno, "read", from);
    if (size == 0) return (*file)->Commit();
    const absl::Status status =
        (*file)->Append(absl::string_view(block).substr(0, static_cast<size_t>(size)));
    if (!status.ok()) return status;
  }
}

// The folder of the newest checkpoint from which the job would continue; empty: there is none.
std::string NewestCheckpoint(const v1::DurableJob& job) {
  std::string folder;
  for (const v1::DurableManifest& manifest : job.manifests()) {
    if (!manifest.refused()) {
      folder = std::string(absl::StripPrefix(manifest.saved().uri(), "file://"));
    }
  }
  return folder;
}

// Opens and reads the copy in `folder`. Its log is merged into the file afterwards.
absl::StatusOr<RestoredJournal> ReadCopy(const std::string& folder, const std::string& copy_of) {
  const auto journal = SqliteJournal::Open(folder, {.copy_of = copy_of});
  if (!journal.ok()) return journal.status();
  const absl::StatusOr<core::DurableState> state = (*journal)->Load();
  if (!state.ok()) return state.status();
  RestoredJournal restored;
  restored.commits = (*journal)->count().commits;
  restored.jobs = static_cast<int64_t>(state->jobs.size());
  for (const auto& [id, bytes] : state->jobs) {
    v1::DurableJob job;
    if (!job.ParseFromString(bytes)) {
      return absl::DataLossError(absl::StrCat("the record of job ", id, " is damaged"));
    }
    if (job.state() == common::v1::JOB_STATE_SUCCEEDED ||
        job.state() == common::v1::JOB_STATE_FAILED ||
        job.state() == common::v1::JOB_STATE_CANCELLED) {
      continue;
    }
    ++restored.going;
    const std::string checkpoint = NewestCheckpoint(job);
    if (!checkpoint.empty() && !IsThere(absl::StrCat(checkpoint, "/manifest.json"))) {
      restored.lacking.push_back(checkpoint);
    }
  }
  return restored;
}

}  // namespace

// ---- JournalCopy ----

absl::StatusOr<std::unique_ptr<JournalCopy>> JournalCopy::Begin(SqliteJournal& journal) {
  const absl::StatusOr<int64_t> pages = journal.Integer("PRAGMA page_count");
  if (!pages.ok()) return pages.status();
  const absl::StatusOr<int64_t> page_bytes = journal.Integer("PRAGMA page_size");
  if (!page_bytes.ok()) return page_bytes.status();
  const std::string path = absl::StrCat(journal.folder(), "/journal.copy");
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return services::ErrnoStatus(errno, "unlink", path);
  }
  const absl::Status room = services::LeaveFree(journal.folder(), *pages * *page_bytes);
  if (!room.ok()) return room;
  std::unique_ptr<JournalCopy> copy(new JournalCopy(journal, path));
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  if (sqlite3_open_v2(path.c_str(), &copy->copy_, flags, nullptr) != SQLITE_OK) {
    return copy->CopyError("open");
  }
  // The copy is sent at once, so it need not outlive this process.
  if (sqlite3_exec(copy->copy_, "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF", nullptr, nullptr,
                   nullptr) != SQLITE_OK) {
    return copy->CopyError("open");
  }
  copy->backup_ = sqlite3_backup_init(copy->copy_, "main", journal.database_, "main");
  if (copy->backup_ == nullptr) return copy->CopyError("copy");
  return copy;
}

JournalCopy::~JournalCopy() {
  Close();
  ::unlink(path_.c_str());
}

void JournalCopy::Close() {
  if (backup_ != nullptr) sqlite3_backup_finish(backup_);
  backup_ = nullptr;
  if (copy_ != nullptr) sqlite3_close(copy_);
  copy_ = nullptr;
}

absl::Status JournalCopy::CopyError(const std::string& what) const {
  const int code = sqlite3_extended_errcode(copy_);
  const std::string message =
      absl::StrCat(path_, ": ", what, ": ", sqlite3_errmsg(copy_), " (", code, ")");
  return (code & 0xff) == SQLITE_FULL ? absl::ResourceExhaustedError(message)
                                      : absl::UnavailableError(message);
}

absl::StatusOr<bool> JournalCopy::Step(int pages) {
  if (backup_ == nullptr) return absl::FailedPreconditionError("the copy is whole, or has failed");
  const int code = sqlite3_backup_step(backup_, pages);
  if (code == SQLITE_OK) return false;
  if (code == SQLITE_DONE) {
    count_ = journal_.count();
    const int finished = sqlite3_backup_finish(backup_);
    backup_ = nullptr;
    if (finished == SQLITE_OK && sqlite3_close(copy_) == SQLITE_OK) {
      copy_ = nullptr;
      return true;
    }
  }
  const absl::Status status =
      absl::Status((code & 0xff) == SQLITE_FULL ? absl::StatusCode::kResourceExhausted
                                                : absl::StatusCode::kUnavailable,
                   absl::StrCat(path_, ": copy: ", sqlite3_errstr(code), " (", code, ")"));
  Close();
  return status;
}

absl::StatusOr<int> JournalCopy::Take() {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return services::ErrnoStatus(errno, "open", path_);
  ::unlink(path_.c_str());
  return fd;
}

// ---- RestoreJournal ----

absl::StatusOr<RestoredJournal> RestoreJournal(std::string backup, std::string state_dir) {
  backup = WithoutSlash(std::move(backup));
  state_dir = WithoutSlash(std::move(state_dir));
  const auto in = [](const std::string& folder, const char* name) {
    return absl::StrCat(folder, "/", name);
  };
  if (!IsThere(in(backup, kDatabase))) {
    return absl::NotFoundError(
        absl::StrCat(backup, ": has no ", kDatabase, ": want a folder that capstan backup made"));
  }
  absl::Status status = services::EnsureDir(state_dir, 0700);
  if (!status.ok()) return status;
  const absl::StatusOr<int> lock = LockFolder(state_dir);
  if (!lock.ok()) return lock.status();
  absl::Cleanup unlock = [fd = *lock] { ::close(fd); };
  for (const char* name : {kDatabase, kLog, kMark}) {
    if (!IsThere(in(state_dir, name))) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(state_dir, ": has a ", name,
                     " already: restore into a folder without a journal, or move it away first"));
  }
  // Read it under another name, so that no coordinator ever starts on an incomplete journal.
  const std::string beside = in(state_dir, "journal.restored");
  if (status = services::RemoveTree(state_dir, beside); !status.ok()) return status;
  if (status = services::EnsureDir(beside, 0700); !status.ok()) return status;
  absl::Cleanup remove = [&] { services::RemoveTree(state_dir, beside).IgnoreError(); };
  for (const char* name : {kDatabase, kLog, kMark}) {
    if (!IsThere(in(backup, name))) continue;  // SqliteJournal reports missing files
    if (status = CopyFile(in(backup, name), in(beside, name)); !status.ok()) return status;
  }
  absl::StatusOr<RestoredJournal> restored = ReadCopy(beside, backup);
  if (!restored.ok()) return restored;
  // The mark first: a journal without a mark is refused, and so is a mark without its journal.
  for (const char* name : {kMark, kLog, kDatabase}) {
    if (!IsThere(in(beside, name))) continue;
    if (::rename(in(beside, name).c_str(), in(state_dir, name).c_str()) != 0) {
      return services::ErrnoStatus(errno, "rename", in(state_dir, name));
    }
  }
  if (status = services::SyncDir(state_dir); !status.ok()) return status;
  return restored;
}

}  // namespace capstan::coordinator
