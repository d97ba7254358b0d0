#include "coordinator/journal/sqlite_journal.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <variant>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/core/node_table.h"
#include "services/clock/clock.h"
#include "services/files/files.h"
#include "training/codec/crc32c.h"

namespace capstan::coordinator {
namespace {

constexpr int64_t kApplicationId = 0x4361704a;  // "CapJ": a file of somebody else is not ours
constexpr absl::Duration kLockPatience = absl::Seconds(2);

// Places for a checksum: of the key and the value together, so that no row passes for another one.
constexpr char kSchema[] = R"(
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE nodes (name TEXT PRIMARY KEY, incarnation INTEGER NOT NULL, register BLOB NOT NULL,
                    sum INTEGER NOT NULL);
CREATE TABLE jobs (id TEXT PRIMARY KEY, job BLOB NOT NULL, sum INTEGER NOT NULL);
CREATE TABLE events (job TEXT NOT NULL, number INTEGER NOT NULL, event BLOB NOT NULL,
                     sum INTEGER NOT NULL, PRIMARY KEY (job, number)) WITHOUT ROWID;
)";
// What schema 2 added.
constexpr char kSchema2[] = R"(
CREATE TABLE history (job TEXT NOT NULL, number INTEGER NOT NULL, page BLOB NOT NULL,
                      sum INTEGER NOT NULL, PRIMARY KEY (job, number));
CREATE TABLE drained (node TEXT PRIMARY KEY) WITHOUT ROWID;
)";

int64_t SumOf(absl::string_view key, int64_t number, absl::string_view value) {
  const std::string head = absl::StrCat(key, "/", number, "/");
  return training::ExtendCrc32c(training::Crc32c(head), value.data(), value.size());
}

absl::string_view BlobOf(sqlite3_stmt* row, int column) {
  const auto* bytes = static_cast<const char*>(sqlite3_column_blob(row, column));
  return {bytes, bytes == nullptr ? 0 : static_cast<size_t>(sqlite3_column_bytes(row, column))};
}

std::string TextOf(sqlite3_stmt* row, int column) {
  const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(row, column));
  return bytes == nullptr ? "" : std::string(bytes, sqlite3_column_bytes(row, column));
}

// The system drops the lock with the process, however it ends.
absl::StatusOr<int> LockFolder(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/lock");
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return services::ErrnoStatus(errno, "open", path);
  absl::Cleanup close = [fd] { ::close(fd); };
  // One that was just killed may need a moment to be gone.
  const absl::Duration until = MonotonicNow() + kLockPatience;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return services::ErrnoStatus(errno, "flock", path);
    if (MonotonicNow() > until) {
      char holder[32] = {};
      const ssize_t size = ::pread(fd, holder, sizeof(holder) - 1, 0);
      return absl::FailedPreconditionError(
          absl::StrCat(folder, ": another coordinator works here",
                       size > 0 ? absl::StrCat(" (process ", holder, ")") : ""));
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  const std::string self = absl::StrCat(::getpid());
  if (::ftruncate(fd, 0) != 0 ||
      ::pwrite(fd, self.data(), self.size(), 0) != static_cast<ssize_t>(self.size())) {
    return services::ErrnoStatus(errno, "write", path);
  }
  std::move(close).Cancel();
  return fd;
}

}  // namespace

// The values of one row, by their places.
class SqliteJournal::Row {
 public:
  Row& Text(absl::string_view value) { return Add({value, 0, kText}); }
  Row& Blob(absl::string_view value) { return Add({value, 0, kBlob}); }
  Row& Integer(int64_t value) { return Add({{}, value, kInteger}); }

  int Bind(sqlite3_stmt* statement) const {
    for (int i = 0; i < size_; ++i) {
      const Value& value = values_[i];
      int code = SQLITE_OK;
      if (value.kind == kInteger) {
        code = sqlite3_bind_int64(statement, i + 1, value.number);
      } else if (value.kind == kText) {
        code = sqlite3_bind_text64(statement, i + 1, value.bytes.data(), value.bytes.size(),
                                   SQLITE_STATIC, SQLITE_UTF8);
      } else if (value.bytes.empty()) {
        code = sqlite3_bind_zeroblob(statement, i + 1, 0);  // a null pointer would be NULL
      } else {
        code = sqlite3_bind_blob64(statement, i + 1, value.bytes.data(), value.bytes.size(),
                                   SQLITE_STATIC);
      }
      if (code != SQLITE_OK) return code;
    }
    return SQLITE_OK;
  }

 private:
  enum Kind { kText, kBlob, kInteger };
  struct Value {
    absl::string_view bytes;
    int64_t number = 0;
    Kind kind = kText;
  };
  Row& Add(Value value) {
    values_[size_++] = value;
    return *this;
  }
  Value values_[4];
  int size_ = 0;
};

SqliteJournal::SqliteJournal(std::string path, int lock_fd)
    : path_(std::move(path)), lock_fd_(lock_fd) {}

SqliteJournal::~SqliteJournal() {
  for (sqlite3_stmt* statement : statements_) sqlite3_finalize(statement);
  sqlite3_close(database_);  // what was not committed is rolled back
  ::close(lock_fd_);
}

absl::StatusOr<std::unique_ptr<SqliteJournal>> SqliteJournal::Open(const std::string& folder) {
  const absl::StatusOr<int> lock = LockFolder(folder);
  if (!lock.ok()) return lock.status();
  std::unique_ptr<SqliteJournal> journal(
      new SqliteJournal(absl::StrCat(folder, "/journal.db"), *lock));
  const absl::Status status = journal->OpenDatabase();
  if (!status.ok()) return status;
  return journal;
}

absl::Status SqliteJournal::OpenDatabase() {
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  if (sqlite3_open_v2(path_.c_str(), &database_, flags, nullptr) != SQLITE_OK) return Error("open");
  sqlite3_extended_result_codes(database_, 1);
  // Exclusive: the index of the WAL is ours alone, in memory.
  absl::Status status = Execute("PRAGMA locking_mode=EXCLUSIVE");
  if (!status.ok()) return status;
  const absl::StatusOr<std::string> mode = Text("PRAGMA journal_mode=WAL");
  if (!mode.ok()) return mode.status();
  if (*mode != "wal") {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": the file system gives no write-ahead log, but ", *mode));
  }
  // FULL: a commit has reached the disk. Fewer, larger checkpoints into the file.
  status = Execute("PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=4000");
  if (!status.ok()) return status;

  const absl::StatusOr<int64_t> tables = Integer("SELECT count(*) FROM sqlite_master");
  if (!tables.ok()) return tables.status();
  if (*tables == 0) {
    status = MakeSchema();
  } else {
    const absl::StatusOr<int64_t> application = Integer("PRAGMA application_id");
    if (!application.ok()) return application.status();
    const absl::StatusOr<int64_t> schema = Integer("PRAGMA user_version");
    if (!schema.ok()) return schema.status();
    if (*application != kApplicationId) {
      return absl::DataLossError(absl::StrCat(path_, ": is no journal of a coordinator"));
    }
    if (*schema > kJournalSchema) {
      return absl::FailedPreconditionError(
          absl::StrCat(path_, ": a newer version of Capstan wrote it (schema ", *schema,
                       ", this one knows ", kJournalSchema, ")"));
    }
    if (*schema < 1) return absl::DataLossError(absl::StrCat(path_, ": schema ", *schema));
    if (*schema < kJournalSchema) status = UpgradeSchema();
    if (!status.ok()) return status;
    const absl::StatusOr<std::string> check = Text("PRAGMA quick_check(1)");
    if (!check.ok()) return check.status();
    if (*check != "ok") return absl::DataLossError(absl::StrCat(path_, ": is damaged: ", *check));
  }
  if (!status.ok()) return status;

  const std::pair<const char*, sqlite3_stmt**> statements[] = {
      {"INSERT OR REPLACE INTO counters VALUES ('incarnation', ?1)", &put_counter_},
      {"INSERT OR REPLACE INTO nodes VALUES (?1, ?2, ?3, ?4)", &put_node_},
      {"DELETE FROM nodes WHERE name = ?1", &drop_node_},
      {"INSERT INTO jobs VALUES (?1, ?2, ?3) ON CONFLICT (id) DO UPDATE SET job = ?2, sum = ?3",
       &put_job_},
      {"DELETE FROM jobs WHERE id = ?1", &drop_job_},
      {"INSERT OR REPLACE INTO events VALUES (?1, ?2, ?3, ?4)", &put_event_},
      {"DELETE FROM events WHERE job = ?1 AND number = ?2", &drop_event_},
      {"DELETE FROM events WHERE job = ?1", &drop_events_},
      {"INSERT OR IGNORE INTO drained VALUES (?1)", &put_drained_},
      {"DELETE FROM drained WHERE node = ?1", &drop_drained_},
      {"INSERT OR REPLACE INTO history VALUES (?1, ?2, ?3, ?4)", &put_page_},
      {"DELETE FROM history WHERE job = ?1 AND number = ?2", &drop_page_},
      {"DELETE FROM history WHERE job = ?1", &drop_pages_}};
  for (const auto& entry : statements) {
    status = Prepare(entry.first, entry.second);
    if (!status.ok()) return status;
    statements_.push_back(*entry.second);
  }
  return absl::OkStatus();
}

absl::Status SqliteJournal::MakeSchema() {
  // One transaction: a crash leaves an empty file, or the whole schema.
  const std::string sql =
      absl::StrCat("BEGIN IMMEDIATE; PRAGMA application_id=", kApplicationId,
                   "; PRAGMA user_version=", kJournalSchema, ";", kSchema, kSchema2, "COMMIT");
  const absl::Status status = Execute(sql.c_str());
  if (!status.ok()) return status;
  return services::SyncDir(path_.substr(0, path_.rfind('/')));  // the file itself is new
}

absl::Status SqliteJournal::UpgradeSchema() {
  const std::string sql = absl::StrCat("BEGIN IMMEDIATE; PRAGMA user_version=", kJournalSchema, ";",
                                       kSchema2, "COMMIT");
  return Execute(sql.c_str());
}

absl::StatusOr<core::DurableState> SqliteJournal::Load() {
  core::DurableState state;
  status_ = Fill(&state);
  if (!status_.ok()) return status_;
  return state;
}

absl::Status SqliteJournal::Fill(core::DurableState* state) {
  const auto damaged = [this](absl::string_view what, absl::string_view key) {
    return absl::DataLossError(absl::StrCat(path_, ": is damaged: the row of ", what, " ", key,
                                            " is not what was written"));
  };
  // Calls `take` for every row; DataLoss where it answers false.
  const auto each = [&](absl::string_view what, const char* sql, auto&& take) -> absl::Status {
    sqlite3_stmt* rows = nullptr;
    absl::Status status = Prepare(sql, &rows);
    absl::Cleanup finalize = [&rows] { sqlite3_finalize(rows); };
    if (!status.ok()) return status;
    int code = SQLITE_OK;
    while ((code = sqlite3_step(rows)) == SQLITE_ROW) {
      const std::string key = TextOf(rows, 0);
      if (!take(key, rows)) return damaged(what, key);
    }
    return code == SQLITE_DONE ? absl::OkStatus() : Error("read");
  };

  absl::Status status = each("counter", "SELECT name, value FROM counters",
                             [&](const std::string& name, sqlite3_stmt* row) {
                               state->last_incarnation = sqlite3_column_int64(row, 1);
                               return name == "incarnation" && state->last_incarnation > 0;
                             });
  if (!status.ok()) return status;
  status = each("node", "SELECT name, incarnation, register, sum FROM nodes",
                [&](const std::string& name, sqlite3_stmt* row) {
                  core::IncarnationIssued issued;
                  issued.incarnation = sqlite3_column_int64(row, 1);
                  const absl::string_view bytes = BlobOf(row, 2);
                  if (SumOf(name, issued.incarnation, bytes) != sqlite3_column_int64(row, 3) ||
                      issued.incarnation > state->last_incarnation ||
                      !issued.reg.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
                    return false;
                  }
                  state->nodes[name] = std::move(issued);
                  return true;
                });
  if (!status.ok()) return status;
  status =
      each("job", "SELECT id, job, sum FROM jobs", [&](const std::string& id, sqlite3_stmt* row) {
        const absl::string_view bytes = BlobOf(row, 1);
        if (SumOf(id, 0, bytes) != sqlite3_column_int64(row, 2)) return false;
        state->jobs[id] = std::string(bytes);
        return true;
      });
  if (!status.ok()) return status;
  status = each("a drained node", "SELECT node FROM drained",
                [&](const std::string& name, sqlite3_stmt*) {
                  state->drained.insert(name);
                  return core::IsName(name);
                });
  if (!status.ok()) return status;
  status = each(
      "a page of the history of job", "SELECT job, number, page, sum FROM history",
      [&](const std::string& id, sqlite3_stmt* row) {
        const int64_t number = sqlite3_column_int64(row, 1);
        const absl::string_view page = BlobOf(row, 2);
        if (SumOf(id, number, page) != sqlite3_column_int64(row, 3) || state->jobs.count(id) == 0) {
          return false;
        }
        state->history[id][number] = std::string(page);
        return true;
      });
  if (!status.ok()) return status;
  return each("an event of job", "SELECT job, number, event, sum FROM events",
              [&](const std::string& id, sqlite3_stmt* row) {
                const int64_t number = sqlite3_column_int64(row, 1);
                const absl::string_view bytes = BlobOf(row, 2);
                return SumOf(id, number, bytes) == sqlite3_column_int64(row, 3) &&
                       state->jobs.count(id) > 0 &&
                       state->events[id][number].ParseFromArray(bytes.data(),
                                                                static_cast<int>(bytes.size()));
              });
}

absl::Status SqliteJournal::Append(const core::Record& record) {
  if (!status_.ok()) return status_;
  if (!open_) {
    status_ = Execute("BEGIN IMMEDIATE");
    if (!status_.ok()) return status_;
    open_ = true;
  }
  status_ = Write(record);
  return status_;
}

absl::Status SqliteJournal::Write(const core::Record& record) {
  if (const auto* saved = std::get_if<core::JobSaved>(&record)) {
    return Run(
        put_job_,
        Row().Text(saved->job_id).Blob(saved->job).Integer(SumOf(saved->job_id, 0, saved->job)));
  }
  if (const auto* added = std::get_if<core::EventAdded>(&record)) {
    const std::string bytes = added->event.SerializeAsString();
    return Run(put_event_, Row()
                               .Text(added->job_id)
                               .Integer(added->number)
                               .Blob(bytes)
                               .Integer(SumOf(added->job_id, added->number, bytes)));
  }
  if (const auto* dropped = std::get_if<core::EventDropped>(&record)) {
    return Run(drop_event_, Row().Text(dropped->job_id).Integer(dropped->number));
  }
  if (const auto* forgotten = std::get_if<core::JobForgotten>(&record)) {
    absl::Status status = Run(drop_events_, Row().Text(forgotten->job_id));
    if (status.ok()) status = Run(drop_pages_, Row().Text(forgotten->job_id));
    return status.ok() ? Run(drop_job_, Row().Text(forgotten->job_id)) : status;
  }
  if (const auto* mark = std::get_if<core::NodeDrained>(&record)) {
    return Run(mark->drained ? put_drained_ : drop_drained_, Row().Text(mark->node));
  }
  if (const auto* page = std::get_if<core::HistoryPage>(&record)) {
    if (page->page.empty()) {
      return Run(drop_page_, Row().Text(page->job_id).Integer(page->number));
    }
    return Run(put_page_, Row()
                              .Text(page->job_id)
                              .Integer(page->number)
                              .Blob(page->page)
                              .Integer(SumOf(page->job_id, page->number, page->page)));
  }
  if (const auto* node = std::get_if<core::NodeForgotten>(&record)) {
    return Run(drop_node_, Row().Text(node->node));
  }
  const auto& issued = std::get<core::IncarnationIssued>(record);
  const std::string bytes = issued.reg.SerializeAsString();
  const absl::Status status = Run(put_counter_, Row().Integer(issued.incarnation));
  if (!status.ok()) return status;
  return Run(put_node_, Row()
                            .Text(issued.reg.name())
                            .Integer(issued.incarnation)
                            .Blob(bytes)
                            .Integer(SumOf(issued.reg.name(), issued.incarnation, bytes)));
}

absl::Status SqliteJournal::Commit() {
  if (!status_.ok() || !open_) return status_;
  status_ = Execute("COMMIT");
  open_ = false;
  return status_;
}

absl::Status SqliteJournal::Run(sqlite3_stmt* statement, const Row& row) {
  int code = row.Bind(statement);
  if (code == SQLITE_OK) code = sqlite3_step(statement);
  absl::Status status;
  if (code != SQLITE_DONE) status = Error("write");
  sqlite3_reset(statement);
  sqlite3_clear_bindings(statement);
  return status;
}

absl::Status SqliteJournal::Execute(const char* sql) {
  if (sqlite3_exec(database_, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return absl::OkStatus();
  return Error(absl::string_view(sql).substr(0, 40));
}

absl::Status SqliteJournal::Prepare(const char* sql, sqlite3_stmt** statement) {
  if (sqlite3_prepare_v3(database_, sql, -1, SQLITE_PREPARE_PERSISTENT, statement, nullptr) ==
      SQLITE_OK) {
    return absl::OkStatus();
  }
  return Error("prepare");
}

absl::StatusOr<int64_t> SqliteJournal::Integer(const char* sql) {
  sqlite3_stmt* statement = nullptr;
  const absl::Status status = Prepare(sql, &statement);
  absl::Cleanup finalize = [&statement] { sqlite3_finalize(statement); };
  if (!status.ok()) return status;
  if (sqlite3_step(statement) != SQLITE_ROW) return Error(sql);
  return sqlite3_column_int64(statement, 0);
}

absl::StatusOr<std::string> SqliteJournal::Text(const char* sql) {
  sqlite3_stmt* statement = nullptr;
  const absl::Status status = Prepare(sql, &statement);
  absl::Cleanup finalize = [&statement] { sqlite3_finalize(statement); };
  if (!status.ok()) return status;
  if (sqlite3_step(statement) != SQLITE_ROW) return Error(sql);
  return TextOf(statement, 0);
}

absl::Status SqliteJournal::Error(absl::string_view what) const {
  const int code = sqlite3_extended_errcode(database_);
  const std::string message =
      absl::StrCat(path_, ": ", what, ": ", sqlite3_errmsg(database_), " (", code, ")");
  switch (code & 0xff) {
    case SQLITE_FULL:
    case SQLITE_NOMEM:
      return absl::ResourceExhaustedError(message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::FailedPreconditionError(message);
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
      return absl::PermissionDeniedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

}  // namespace capstan::coordinator
