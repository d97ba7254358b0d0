// The number of the last commit, in a small file beside the journal.
//
// After a crash SQLite takes the write-ahead log as far as its checksums hold, and drops the rest
// without a word: one flipped bit there takes away every later commit. The journal counts its
// commits in a row of its own; this file says how far the count had got.
//
// Two slots, written in turns, so that a torn write leaves the other one. A slot is written once its
// commit is on the disk, never before, so after any crash the journal has at least what the file
// says. It reaches the disk within kMarkSync of commits, or as the system writes it back: a process
// that is killed loses nothing of it; a host that loses power may lose the last numbers, which only
// makes the check of that one start weaker.
#ifndef CAPSTAN_COORDINATOR_JOURNAL_COMMIT_MARK_H_
#define CAPSTAN_COORDINATOR_JOURNAL_COMMIT_MARK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace capstan::coordinator {

inline constexpr absl::Duration kMarkSync = absl::Seconds(1);

struct CommitCount {
  int64_t journal = 0;  // a random number above 0 that the journal got when it was made
  int64_t commits = 0;
};

// One thread at a time.
class CommitMark {
 public:
  // What the file says; nullopt: there is none. DataLoss: neither slot holds.
  static absl::StatusOr<std::optional<CommitCount>> Read(const std::string& path);
  // Makes the file anew, durably, in place of the one that is there.
  static absl::StatusOr<std::unique_ptr<CommitMark>> Create(const std::string& path,
                                                            const CommitCount& count);
  // Opens the one that is there, and goes on behind `count`.
  static absl::StatusOr<std::unique_ptr<CommitMark>> Open(const std::string& path,
                                                          const CommitCount& count);
  // What stands in the file, for one that is written elsewhere.
  static std::string Text(const CommitCount& count);
  ~CommitMark();  // syncs
  CommitMark(const CommitMark&) = delete;
  CommitMark& operator=(const CommitMark&) = delete;

  // The next commit is on the disk.
  absl::Status Count();

 private:
  CommitMark(std::string path, int fd, const CommitCount& count);

  const std::string path_;
  const int fd_;
  CommitCount count_;
  absl::Duration synced_;
};

// How far the write-ahead log at `path` is what was written, for people: "journal.db-wal holds
// together up to frame 12 of 40, byte 49472, with 5 commits". As SQLite checks it:
// https://www.sqlite.org/walformat.html. What follows may be of an earlier turn of the log.
std::string DescribeWal(const std::string& path);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_JOURNAL_COMMIT_MARK_H_
