// A copy of the journal, taken while commits go on, and the journal that is made of a copy.
//
// A copy is one file, journal.db, without a log beside it, and the text of its journal.mark. SQLite's
// online backup takes it page by page; pages that a commit changes meanwhile are copied again, so it
// holds every commit up to its last page.
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

// On the thread of the journal, which it borrows; one of a journal at a time.
class JournalCopy {
 public:
  // The copy lies beside the journal, as journal.copy, until it is taken. ResourceExhausted, with the
  // numbers: the disk has no room for it.
  static absl::StatusOr<std::unique_ptr<JournalCopy>> Begin(SqliteJournal& journal);
  // Removes what nobody took.
  ~JournalCopy();
  JournalCopy(const JournalCopy&) = delete;
  JournalCopy& operator=(const JournalCopy&) = delete;

  // Copies up to `pages` of 4 KiB. True: it is whole. After an error there is nothing to take.
  absl::StatusOr<bool> Step(int pages);

  // An open file without a name, which the caller closes. Once, when Step has said that it is whole.
  absl::StatusOr<int> Take();
  // Of the whole copy.
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

// What a state folder was restored with.
struct RestoredJournal {
  int64_t commits = 0;
  int64_t jobs = 0;   // all
  int64_t going = 0;  // of them, those that have not ended
  // Of these the folders of newest checkpoints that are not on this host.
  std::vector<std::string> lacking;
};

// Puts the journal of `backup` into `state_dir`, which is made where it is missing (mode 0700), and
// reads all of it there first: the sums of its rows, and its count of commits against journal.mark.
// `backup` is what `capstan backup` made, or the folder of a coordinator that was stopped when it was
// copied; nothing in it changes. What fails leaves `state_dir` without a journal, as it was.
//   NotFound            `backup` has no journal.db
//   FailedPrecondition  `state_dir` has a journal, or a coordinator works there
//   DataLoss            the copy lacks commits that journal.mark knows of, as one that was made without
//                       journal.db-wal while the coordinator ran, or has no journal.mark, or is damaged
absl::StatusOr<RestoredJournal> RestoreJournal(std::string backup, std::string state_dir);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_JOURNAL_JOURNAL_COPY_H_
