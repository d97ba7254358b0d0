// The coordinator's durable facts in one SQLite file.
//
// Every fact is a row with its own checksum, because SQLite notices a broken page but not a flipped
// bit inside a value. Commits are counted in a row and in a file beside the journal
// (commit_mark.h), because SQLite silently drops commits behind a flipped bit of its log. The
// sqlite3 program can read the journal while no coordinator runs.
//
// On a full disk the journal first gives up a file that it keeps for that purpose
// (`journal.reserve`). So it can continue while somebody makes room.
#ifndef CAPSTAN_COORDINATOR_JOURNAL_SQLITE_JOURNAL_H_
#define CAPSTAN_COORDINATOR_JOURNAL_SQLITE_JOURNAL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/journal.h"
#include "coordinator/journal/commit_mark.h"

struct sqlite3;
struct sqlite3_stmt;

namespace capstan::coordinator {

inline constexpr int kJournalSchema = 3;
inline constexpr int64_t kReserveBytes = int64_t{16} << 20;

struct JournalOptions {
  // Accepts a journal that lacks commits, or whose journal.mark is missing, damaged or of another
  // journal, if it holds exactly this many commits. The missing commits are lost for good.
  std::optional<int64_t> accept_commits;
  // The folder that the journal was copied from, for error messages. Empty: it is not a copy.
  std::string copy_of;
  // Size of `journal.reserve`; at most a 16th of the disk.
  int64_t reserve_bytes = kReserveBytes;
};

// Use from one thread at a time.
class SqliteJournal final : public core::Journal {
 public:
  // Opens `folder`/journal.db, or makes it, and keeps every other coordinator out of `folder` while
  // this object and its process live. Errors name the file:
  //   FailedPrecondition  another process has the folder, or a newer version wrote the journal
  //   DataLoss            it is damaged, or lacks commits that it once had; the message says what
  //                       to do, and the files stay unchanged
  //   ResourceExhausted   the disk is full
  static absl::StatusOr<std::unique_ptr<SqliteJournal>> Open(const std::string& folder,
                                                             const JournalOptions& options = {});
  ~SqliteJournal() override;
  SqliteJournal(const SqliteJournal&) = delete;
  SqliteJournal& operator=(const SqliteJournal&) = delete;

  // Reads everything that was committed. Call it before the first Append. DataLoss: a row was
  // changed.
  absl::StatusOr<core::DurableState> Load();

  // After an error every later call fails with it, except after ResourceExhausted (the disk is
  // full).
  absl::Status Append(const core::Record& record) override;
  absl::Status Commit() override;
  // Also makes the reserve again if there is room for it.
  bool low() override;
  std::string folder() const { return path_.substr(0, path_.rfind('/')); }
  // The count of the commits so far.
  const CommitCount& count() const { return count_; }

 private:
  friend class JournalCopy;
  SqliteJournal(std::string path, int lock_fd, int64_t reserve_bytes);
  absl::Status OpenDatabase(const JournalOptions& options);
  absl::Status CheckDatabase(const JournalOptions& options);
  // `may_lack`: this journal may be without a mark.
  absl::Status CheckMark(const JournalOptions& options, bool may_lack);
  absl::Status GoneBack(const JournalOptions& options, absl::string_view what) const;
  absl::Status CreateMark();
  absl::Status MakeMark();
  absl::Status MakeSchema();
  absl::Status UpgradeSchema(int64_t from);
  absl::Status ReadCounts();
  int64_t CountSum() const;
  std::string MarkPath() const;
  void KeepCheckpoints(bool keep);
  absl::Status PutAll();
  void RollBack();
  void TakeReserve();
  bool GiveUpReserve();
  absl::Status Execute(const char* sql);
  absl::StatusOr<int64_t> Integer(const char* sql);
  absl::StatusOr<std::string> Text(const char* sql);
  absl::Status Prepare(const char* sql, sqlite3_stmt** statement);
  absl::Status Fill(core::DurableState* state);
  // Binds texts, integers and blobs to the statement's places in order, and runs it.
  class Row;
  absl::Status Run(sqlite3_stmt* statement, const Row& row);
  absl::Status Write(const core::Record& record);
  absl::Status Error(absl::string_view what) const;

  const std::string path_;
  const int lock_fd_;
  const int64_t reserve_bytes_;
  sqlite3* database_ = nullptr;
  absl::Status status_;
  std::vector<core::Record> pending_;  // appended, not committed

  CommitCount count_;  // of the database
  std::unique_ptr<CommitMark> mark_;
  // The row of the counts has a checksum that covers these, too.
  int64_t incarnation_ = 0;
  std::set<std::string> drained_;
  bool reserve_ = false;  // the file exists
  absl::Duration reserve_tried_;

  std::vector<sqlite3_stmt*> statements_;  // all of the following
  sqlite3_stmt* put_counter_ = nullptr;
  sqlite3_stmt* put_count_ = nullptr;
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
