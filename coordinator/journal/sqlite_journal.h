// The coordinator's durable facts in one SQLite file.
//
// Every fact is a row with a checksum of its own: SQLite notices a broken page, not a flipped bit
// inside a value. Readable with the sqlite3 program while no coordinator runs.
#ifndef CAPSTAN_COORDINATOR_JOURNAL_SQLITE_JOURNAL_H_
#define CAPSTAN_COORDINATOR_JOURNAL_SQLITE_JOURNAL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/journal.h"

struct sqlite3;
struct sqlite3_stmt;

namespace capstan::coordinator {

inline constexpr int kJournalSchema = 2;

// One thread at a time.
class SqliteJournal final : public core::Journal {
 public:
  // Opens `folder`/journal.db, or makes it, and keeps every other coordinator out of `folder` until
  // this object, or its process, has gone. Errors name the file:
  //   FailedPrecondition  another process has the folder; or a newer version wrote the journal
  //   DataLoss            it is damaged
  //   ResourceExhausted   the disk is full
  static absl::StatusOr<std::unique_ptr<SqliteJournal>> Open(const std::string& folder);
  ~SqliteJournal() override;
  SqliteJournal(const SqliteJournal&) = delete;
  SqliteJournal& operator=(const SqliteJournal&) = delete;

  // All that was committed. Before the first Append. DataLoss: a row is not what was written.
  absl::StatusOr<core::DurableState> Load();

  // After an error every further call fails with it.
  absl::Status Append(const core::Record& record) override;
  absl::Status Commit() override;

 private:
  SqliteJournal(std::string path, int lock_fd);
  absl::Status OpenDatabase();
  absl::Status MakeSchema();
  absl::Status UpgradeSchema();  // from 1
  absl::Status Execute(const char* sql);
  absl::StatusOr<int64_t> Integer(const char* sql);
  absl::StatusOr<std::string> Text(const char* sql);
  absl::Status Prepare(const char* sql, sqlite3_stmt** statement);
  absl::Status Fill(core::DurableState* state);
  // Binds texts, integers and blobs in the order of the statement's places, and runs it.
  class Row;
  absl::Status Run(sqlite3_stmt* statement, const Row& row);
  absl::Status Write(const core::Record& record);
  absl::Status Error(absl::string_view what) const;

  const std::string path_;
  const int lock_fd_;
  sqlite3* database_ = nullptr;
  bool open_ = false;  // a transaction is
  absl::Status status_;

  std::vector<sqlite3_stmt*> statements_;  // all of the following
  sqlite3_stmt* put_counter_ = nullptr;
  sqlite3_stmt* put_node_ = nullptr;
  sqlite3_stmt* drop_node_ = nullptr;
  sqlite3_stmt* put_job_ = nullptr;
  sqlite3_stmt* drop_job_ = nullptr;
  sqlite3_stmt* put_event_ = nullptr;
  sqlite3_stmt* drop_event_ = nullptr;
  sqlite3_stmt* drop_events_ = nullptr;
  sqlite3_stmt* put_drained_ = nullptr;
  sqlite3_stmt* drop_drained_ = nullptr;
  sqlite3_stmt* put_page_ = nullptr;
  sqlite3_stmt* drop_page_ = nullptr;
  sqlite3_stmt* drop_pages_ = nullptr;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_JOURNAL_SQLITE_JOURNAL_H_
