#include "coordinator/journal/sqlite_journal.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <variant>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/core/node_table.h"
#include "coordinator/journal/folder_lock.h"
#include "services/clock/clock.h"
#include "services/files/files.h"
#include "services/logging/log.h"
#include "training/codec/crc32c.h"

namespace capstan::coordinator {
namespace {

constexpr int64_t kApplicationId = 0x4361704a;  // "CapJ"; other applications' files are refused
constexpr absl::Duration kReserveRetry = absl::Seconds(1);
constexpr int64_t kReserveShare = 16;  // at most this fraction of the disk

// The columns `sum` are checksums of key and value together, so that no row passes for another.
constexpr char kSchema[] = R"(
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE nodes (name TEXT PRIMARY KEY, incarnation INTEGER NOT NULL, register BLOB NOT NULL,
                    sum INTEGER NOT NULL);
CREATE TABLE jobs (id TEXT PRIMARY KEY, job BLOB NOT NULL, sum INTEGER NOT NULL);
CREATE TABLE events (job TEXT NOT NULL, number INTEGER NOT NULL, event BLOB NOT NULL,
                     sum INTEGER NOT NULL, PRIMARY KEY (job, number)) WITHOUT ROWID;
)";
// Added by schema 2.
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

// Added by schema 3: one row. `journal` and `commits` as in commit_mark.h. `sum` covers all data
// that have no checksum of their own.
constexpr char kSchema3[] = R"(
CREATE TABLE commits (id INTEGER PRIMARY KEY, journal INTEGER NOT NULL, commits INTEGER NOT NULL,
                      sum INTEGER NOT NULL);
)";

// A random number above 0.
int64_t RandomNumber() {
  uint64_t number = 0;
  while (number == 0) {
    if (::getrandom(&number, sizeof(number), 0) != sizeof(number)) number = 0;
    number >>= 1;
  }
  return static_cast<int64_t>(number);
}

}  // namespace

// The values of one row, in the order of its columns.
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

SqliteJournal::SqliteJournal(std::string path, int lock_fd, int64_t reserve_bytes)
    : path_(std::move(path)), lock_fd_(lock_fd), reserve_bytes_(reserve_bytes) {}

SqliteJournal::~SqliteJournal() {
  for (sqlite3_stmt* statement : statements_) sqlite3_finalize(statement);
  sqlite3_close(database_);  // rolls back what was not committed
  ::close(lock_fd_);
}

absl::StatusOr<std::unique_ptr<SqliteJournal>> SqliteJournal::Open(const std::string& folder,
                                                                   const JournalOptions& options) {
  const absl::StatusOr<int> lock = LockFolder(folder);
  if (!lock.ok()) return lock.status();
  std::unique_ptr<SqliteJournal> journal(
      new SqliteJournal(absl::StrCat(folder, "/journal.db"), *lock, options.reserve_bytes));
  const absl::Status status = journal->OpenDatabase(options);
  if (!status.ok()) return status;
  journal->KeepCheckpoints(true);
  journal->TakeReserve();
  return journal;
}

std::string SqliteJournal::MarkPath() const { return absl::StrCat(folder(), "/journal.mark"); }

// Whether closing the journal merges the log into the file and removes the log. If a journal is
// refused, its files must not change.
void SqliteJournal::KeepCheckpoints(bool keep) {
  sqlite3_db_config(database_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keep ? 0 : 1, nullptr);
}

absl::Status SqliteJournal::OpenDatabase(const JournalOptions& options) {
  // SQLite would make a missing file and remove the log beside it.
  struct stat file = {};
  const bool fresh = ::stat(path_.c_str(), &file) != 0 || file.st_size == 0;
  if (fresh) {
    absl::Status status = CheckMark(options, /*may_lack=*/true);
    // Before the file, so that a journal without a mark is never a new one.
    if (status.ok()) status = MakeMark();
    if (!status.ok()) return status;
  }
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  if (sqlite3_open_v2(path_.c_str(), &database_, flags, nullptr) != SQLITE_OK) return Error("open");
  sqlite3_extended_result_codes(database_, 1);
  KeepCheckpoints(false);
  // Exclusive: the index of the WAL is in this process's memory only.
  absl::Status status = Execute("PRAGMA locking_mode=EXCLUSIVE");
  if (!status.ok()) return status;
  const absl::StatusOr<std::string> mode = Text("PRAGMA journal_mode=WAL");
  if (!mode.ok()) return mode.status();
  if (*mode != "wal") {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": the file system does not support a write-ahead log, only ", *mode));
  }
  // FULL: a commit has reached the disk. Checkpoints into the file are fewer and larger.
  status = Execute("PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=4000");
  if (!status.ok()) return status;

  const absl::StatusOr<int64_t> tables = Integer("SELECT count(*) FROM sqlite_master");
  if (!tables.ok()) return tables.status();
  if (*tables == 0) {
    // A new journal, or a file whose commits were all in a log that was not copied with it.
    status = CheckMark(options, fresh);
    if (status.ok()) status = MakeSchema();
  } else {
    status = CheckDatabase(options);
  }
  if (!status.ok()) return status;

  const std::pair<const char*, sqlite3_stmt**> statements[] = {
      {"INSERT OR REPLACE INTO counters VALUES ('incarnation', ?1)", &put_counter_},
      {"INSERT OR REPLACE INTO commits VALUES (1, ?1, ?2, ?3)", &put_count_},
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

absl::Status SqliteJournal::CheckDatabase(const JournalOptions& options) {
  const absl::StatusOr<int64_t> application = Integer("PRAGMA application_id");
  if (!application.ok()) return application.status();
  const absl::StatusOr<int64_t> schema = Integer("PRAGMA user_version");
  if (!schema.ok()) return schema.status();
  if (*application != kApplicationId) {
    return absl::DataLossError(absl::StrCat(path_, ": is not the journal of a coordinator"));
  }
  if (*schema > kJournalSchema) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": a newer version of Capstan wrote it (schema ", *schema,
                     ", this one knows ", kJournalSchema, ")"));
  }
  if (*schema < 1) return absl::DataLossError(absl::StrCat(path_, ": schema ", *schema));
  const absl::StatusOr<std::string> check = Text("PRAGMA integrity_check(1)");
  if (!check.ok()) return check.status();
  if (*check != "ok") return absl::DataLossError(absl::StrCat(path_, ": is damaged: ", *check));
  // Commits were not counted before schema 3.
  absl::Status status = *schema < 3 ? absl::OkStatus() : ReadCounts();
  if (status.ok()) status = CheckMark(options, *schema < 3);
  if (status.ok() && *schema < kJournalSchema) status = UpgradeSchema(*schema);
  if (status.ok() && mark_ == nullptr) {
    absl::StatusOr<std::unique_ptr<CommitMark>> mark = CommitMark::Open(MarkPath(), count_);
    if (!mark.ok()) return mark.status();
    mark_ = *std::move(mark);
  }
  return status;
}

// Reads the count, and the data that its checksum covers.
absl::Status SqliteJournal::ReadCounts() {
  sqlite3_stmt* row = nullptr;
  absl::Cleanup finalize = [&row] { sqlite3_finalize(row); };
  absl::Status status = Prepare("SELECT journal, commits, sum FROM commits", &row);
  if (!status.ok()) return status;
  if (sqlite3_step(row) != SQLITE_ROW) {
    return absl::DataLossError(absl::StrCat(path_, ": is damaged: the count of commits is gone"));
  }
  count_ = {sqlite3_column_int64(row, 0), sqlite3_column_int64(row, 1)};
  const int64_t sum = sqlite3_column_int64(row, 2);
  const absl::StatusOr<int64_t> incarnation =
      Integer("SELECT coalesce(max(value), 0) FROM counters WHERE name = 'incarnation'");
  if (!incarnation.ok()) return incarnation.status();
  incarnation_ = *incarnation;
  sqlite3_stmt* names = nullptr;
  absl::Cleanup finalize_names = [&names] { sqlite3_finalize(names); };
  status = Prepare("SELECT node FROM drained", &names);
  if (!status.ok()) return status;
  int code = SQLITE_OK;
  while ((code = sqlite3_step(names)) == SQLITE_ROW) drained_.insert(TextOf(names, 0));
  if (code != SQLITE_DONE) return Error("read");
  if (count_.journal <= 0 || count_.commits < 0 || sum != CountSum()) {
    return absl::DataLossError(absl::StrCat(
        path_, ": is damaged: the counters or the drained nodes are not what was written"));
  }
  return absl::OkStatus();
}

int64_t SqliteJournal::CountSum() const {
  std::string all = absl::StrCat(incarnation_);
  for (const std::string& name : drained_) absl::StrAppend(&all, "/", name);
  return SumOf(absl::StrCat(count_.journal), count_.commits, all);
}

// DataLoss, unless the operator accepts the journal as it is.
absl::Status SqliteJournal::GoneBack(const JournalOptions& options, absl::string_view what) const {
  const std::string wal =
      DescribeWal(options.copy_of.empty() ? absl::StrCat(path_, "-wal")
                                          : absl::StrCat(options.copy_of, "/journal.db-wal"));
  if (!options.copy_of.empty()) {
    return absl::DataLossError(
        absl::StrCat(options.copy_of, ": journal.db ", what, " (", wal,
                     "). A folder copied while its coordinator ran is not a backup: make one "
                     "with capstan backup; see docs/operations.md, Backups"));
  }
  return absl::DataLossError(absl::StrCat(
      path_, ": ", what, " (", wal,
      "). Nothing was changed. Put back journal.db, journal.db-wal and journal.mark as they were, "
      "restore a backup into an empty folder, or copy the folder and start once with "
      "--accept-journal=",
      count_.commits,
      " to continue with what is left; see docs/operations.md, A journal that is refused"));
}

absl::Status SqliteJournal::CheckMark(const JournalOptions& options, bool may_lack) {
  const bool accepted = options.accept_commits == count_.commits;
  const absl::StatusOr<std::optional<CommitCount>> read = CommitMark::Read(MarkPath());
  std::string why;
  if (!read.ok() && !absl::IsDataLoss(read.status())) return read.status();
  if (!read.ok()) {
    why = "journal.mark beside it is damaged, so the journal may be incomplete";
  } else if (!read->has_value()) {
    if (may_lack) return absl::OkStatus();  // a new journal, or one of an older version
    why = "journal.mark beside it is missing, so the journal may be incomplete";
  } else if ((*read)->commits > 0 && count_.journal == 0) {
    why = absl::StrCat(
        "lacks commits that were durable: it holds none, but journal.mark beside it "
        "has ",
        (*read)->commits);
  } else if (count_.journal != 0 && (*read)->journal != count_.journal) {
    why = "journal.mark beside it belongs to another journal";
  } else if ((*read)->commits > count_.commits) {
    why = absl::StrCat("lacks commits that were durable: it holds ", count_.commits,
                       ", but journal.mark beside it has ", (*read)->commits);
  } else {
    return absl::OkStatus();
  }
  if (!accepted) return GoneBack(options, why);
  services::Log(services::kWarning, "journal_accepted").Kv("why", why);
  if (count_.journal == 0) return absl::OkStatus();
  return CreateMark();
}

absl::Status SqliteJournal::CreateMark() {
  absl::StatusOr<std::unique_ptr<CommitMark>> mark = CommitMark::Create(MarkPath(), count_);
  if (!mark.ok()) return mark.status();
  mark_ = *std::move(mark);
  return absl::OkStatus();
}

// Makes the mark of a new journal, with a count of 0.
absl::Status SqliteJournal::MakeMark() {
  count_ = {RandomNumber(), 0};
  return CreateMark();
}

absl::Status SqliteJournal::MakeSchema() {
  // The mark first, so that a crash in between leaves no journal without one.
  if (mark_ == nullptr) {
    if (const absl::Status made = MakeMark(); !made.ok()) return made;
  }
  // One transaction, so that a crash leaves an empty file or the whole schema.
  const std::string sql = absl::StrCat("BEGIN IMMEDIATE; PRAGMA application_id=", kApplicationId,
                                       "; PRAGMA user_version=", kJournalSchema, ";", kSchema,
                                       kSchema2, kSchema3, "INSERT INTO commits VALUES (1, ",
                                       count_.journal, ", 0, ", CountSum(), "); COMMIT");
  const absl::Status status = Execute(sql.c_str());
  if (!status.ok()) return status;
  return services::SyncDir(folder());  // the file itself is new
}

absl::Status SqliteJournal::UpgradeSchema(int64_t from) {
  absl::Status status = MakeMark();
  if (status.ok()) status = Execute("BEGIN IMMEDIATE");
  if (status.ok() && from < 2) status = Execute(kSchema2);
  if (status.ok()) status = Execute(kSchema3);
  if (status.ok()) {
    status =
        Execute(absl::StrCat("INSERT INTO commits VALUES (1, ", count_.journal, ", 0, 0)").c_str());
  }
  if (!status.ok()) return status;
  // The data had no checksum before, so they are accepted as they are.
  const absl::Status unsummed = ReadCounts();
  if (!absl::IsDataLoss(unsummed) && !unsummed.ok()) return unsummed;
  return Execute(absl::StrCat("UPDATE commits SET sum = ", CountSum(),
                              "; PRAGMA user_version=", kJournalSchema, "; COMMIT")
                     .c_str());
}

absl::StatusOr<core::DurableState> SqliteJournal::Load() {
  core::DurableState state;
  status_ = Fill(&state);
  if (!status_.ok()) {
    KeepCheckpoints(false);
    return status_;
  }
  return state;
}

absl::Status SqliteJournal::Fill(core::DurableState* state) {
  const auto damaged = [this](absl::string_view what, absl::string_view key) {
    return absl::DataLossError(absl::StrCat(path_, ": is damaged: the row of ", what, " ", key,
                                            " is not what was written"));
  };
  // Calls `take` for every row. DataLoss if it returns false.
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
  pending_.push_back(record);
  return absl::OkStatus();
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
    if (mark->drained) {
      drained_.insert(mark->node);
    } else {
      drained_.erase(mark->node);
    }
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
  incarnation_ = issued.incarnation;
  const absl::Status status = Run(put_counter_, Row().Integer(issued.incarnation));
  if (!status.ok()) return status;
  return Run(put_node_, Row()
                            .Text(issued.reg.name())
                            .Integer(issued.incarnation)
                            .Blob(bytes)
                            .Integer(SumOf(issued.reg.name(), issued.incarnation, bytes)));
}

absl::Status SqliteJournal::Commit() {
  if (!status_.ok() || pending_.empty()) return status_;
  absl::Status status = PutAll();
  if (absl::IsResourceExhausted(status) && GiveUpReserve()) status = PutAll();
  if (absl::IsResourceExhausted(status)) return status;  // a later call tries again
  status_ = status;
  pending_.clear();
  return status_;
}

// Commits in one transaction, or not at all.
absl::Status SqliteJournal::PutAll() {
  const CommitCount before = count_;
  absl::Status status = Execute("BEGIN IMMEDIATE");
  for (const core::Record& record : pending_) {
    if (!status.ok()) break;
    status = Write(record);
  }
  if (status.ok()) {
    ++count_.commits;
    status =
        Run(put_count_, Row().Integer(count_.journal).Integer(count_.commits).Integer(CountSum()));
  }
  if (status.ok()) status = Execute("COMMIT");
  if (status.ok()) return mark_->Count();
  count_ = before;
  RollBack();
  return status;
}

void SqliteJournal::RollBack() {
  if (sqlite3_get_autocommit(database_) == 0) {
    sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
}

bool SqliteJournal::low() {
  if (!reserve_ && MonotonicNow() - reserve_tried_ > kReserveRetry) TakeReserve();
  return !reserve_;
}

// Only if as much again stays free, so that this does not fill a nearly full disk.
void SqliteJournal::TakeReserve() {
  reserve_tried_ = MonotonicNow();
  const std::string path = absl::StrCat(folder(), "/journal.reserve");
  struct statvfs disk = {};
  if (::statvfs(folder().c_str(), &disk) != 0) return;
  const int64_t block = static_cast<int64_t>(disk.f_frsize);
  const int64_t size =
      std::min(reserve_bytes_, static_cast<int64_t>(disk.f_blocks) * block / kReserveShare);
  struct stat there = {};
  if (::stat(path.c_str(), &there) == 0 && there.st_size == size &&
      int64_t{there.st_blocks} * 512 >= size) {
    reserve_ = true;
    return;
  }
  if (static_cast<int64_t>(disk.f_bavail) * block < 2 * size) return;
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return;
  reserve_ = ::posix_fallocate(fd, 0, size) == 0;
  ::close(fd);
  if (!reserve_) ::unlink(path.c_str());
}

bool SqliteJournal::GiveUpReserve() {
  if (!reserve_) return false;
  reserve_ = false;
  reserve_tried_ = MonotonicNow();
  return ::unlink(absl::StrCat(folder(), "/journal.reserve").c_str()) == 0;
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
