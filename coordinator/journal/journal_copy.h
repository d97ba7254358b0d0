// Copies the journal while commits continue, and restores a journal from a copy.
//
// A copy is one file, journal.db, without a log beside it, and the text of its journal.mark.
// SQLite's online backup copies it page by page and repeats pages that a commit changes meanwhile.
// So the copy holds every commit up to its last page.
#ifndef CAPSTAN_COORDINATOR_JOURNAL_JOURNAL_COPY_H_
#define CAPSTAN_COORDINATOR_JOURNAL_JOURNAL_COPY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/journal/commit_mark.h"
#include "coordinator/journal/sqlite_journal.h"

struct sqlite3;
struct sqlite3_backup;

namespace capstan::coordinator {

// Use on the thread of the journal, which it borrows. A journal has at most one copy at a time.
class JournalCopy {
 public:
  // Until Take, the copy is beside the journal as journal.copy. ResourceExhausted: the disk has no
  // room for it; the message has the numbers.
  static absl::StatusOr<std::unique_ptr<JournalCopy>> Begin(SqliteJournal& journal);
  // Removes the copy if nobody took it.
  ~JournalCopy();
  JournalCopy(const JournalCopy&) = delete;
  JournalCopy& operator=(const JournalCopy&) = delete;

  // Copies up to `pages` pages of 4 KiB. True: the copy is complete. After an error there is no
  // copy.
  absl::StatusOr<bool> Step(int pages);

  // An open file without a name, which the caller closes. Call it once, after Step has returned
  // true.
  absl::StatusOr<int> Take();
  // The count of the complete copy.
  const CommitCount& count() const { return count_; }

 private:
  JournalCopy(SqliteJournal& journal, std::string path)
      : journal_(journal), path_(std::move(path)) {}
  absl::Status CopyError(const std::string& what) const;
  void Close();

  SqliteJournal& journal_;
  const std::string path_;
  sqlite3* copy_ = nullptr;
  sqlite3_backup* backup_ = nullptr;
  CommitCount count_;
};

// The content of a restored state folder.
struct RestoredJournal {
  int64_t commits = 0;
  int64_t jobs = 0;   // all jobs
  int64_t going = 0;  // jobs that have not ended
  // Of these, the folders of the newest checkpoints that are missing on this host.
  std::vector<std::string> lacking;
};

// Puts the journal of `backup` into `state_dir`, which is made if it is missing (mode 0700). First
// reads all of it there: the checksums of its rows, and its count of commits against journal.mark.
// `backup` is the result of `capstan backup`, or the folder of a coordinator that was stopped when
// it was copied. Nothing in it changes. If this fails, `state_dir` has no journal, as before.
//   NotFound            `backup` has no journal.db
//   FailedPrecondition  `state_dir` has a journal, or a coordinator works there
//   DataLoss            the copy lacks commits that journal.mark counts (for example if it was made
//                       without journal.db-wal while the coordinator ran), is damaged, or has no
//                       journal.mark
absl::StatusOr<RestoredJournal> RestoreJournal(std::string backup, std::string state_dir);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_JOURNAL_JOURNAL_COPY_H_
