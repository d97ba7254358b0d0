// The number of the last commit, in a small file beside the journal.
//
// After a crash SQLite uses the write-ahead log as far as its checksums match and silently drops
// the rest. So one flipped bit there loses every later commit. The journal therefore counts its
// commits in a row, and this file says how far the count had come.
//
// The file has two slots, written in turns, so that a torn write leaves the other one. A slot is
// written only after its commit is on the disk, so after any crash the journal has at least as many
// commits as the file says. The file itself reaches the disk within kMarkSync commits, or when the
// system writes it back. A killed process loses nothing of it. A host that loses power may lose the
// last numbers, which only weakens the check at that one start.
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
  int64_t journal = 0;  // a random number above 0, drawn when the journal was made
  int64_t commits = 0;
};

// Use from one thread at a time.
class CommitMark {
 public:
  // The count in the file; nullopt: there is no file. DataLoss: neither slot is valid.
  static absl::StatusOr<std::optional<CommitCount>> Read(const std::string& path);
  // Makes the file anew, durably, and replaces an existing one.
  static absl::StatusOr<std::unique_ptr<CommitMark>> Create(const std::string& path,
                                                            const CommitCount& count);
  // Opens the existing file and continues after `count`.
  static absl::StatusOr<std::unique_ptr<CommitMark>> Open(const std::string& path,
                                                          const CommitCount& count);
  // The content of the file, for a caller that writes it elsewhere.
  static std::string Text(const CommitCount& count);
  ~CommitMark();  // syncs
  CommitMark(const CommitMark&) = delete;
  CommitMark& operator=(const CommitMark&) = delete;

  // Call it when the next commit is on the disk.
  absl::Status Count();

 private:
  CommitMark(std::string path, int fd, const CommitCount& count);

  const std::string path_;
  const int fd_;
  CommitCount count_;
  absl::Duration synced_;
};

// How much of the write-ahead log at `path` is intact, for people: "journal.db-wal is intact
// up to frame 12 of 40, byte 49472, with 5 commits". Checks it as SQLite does:
// https://www.sqlite.org/walformat.html. Later frames may be from an earlier cycle of the log.
std::string DescribeWal(const std::string& path);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_JOURNAL_COMMIT_MARK_H_
