// A journal whose files were damaged, cut, emptied, removed or swapped while no coordinator ran. It
// is refused by name, or nothing of it is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/journal/sqlite_journal.h"
#include "services/files/files.h"

namespace capstan::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr size_t kStride = 97;
constexpr size_t kWalFrame = 24 + 4096;
constexpr size_t kMarkSlot = 512;
const char* const kFiles[] = {"journal.db", "journal.db-wal", "journal.mark", "lock"};

using Files = std::map<std::string, std::optional<std::string>>;  // nullopt: no file

class JournalDamageTest : public ::testing::Test {
 protected:
  JournalDamageTest() : dir_(*services::MakePrivateDir("capstan-damage")) {}
  ~JournalDamageTest() override { (void)services::RemoveTree("/tmp", dir_); }

  // Makes each entry one transaction, in a process that is then killed, so that the log stays.
  void CommitAndDie(const std::vector<std::vector<core::Record>>& commits) {
    const pid_t child = ::fork();
    if (child == 0) {
      auto journal = SqliteJournal::Open(dir_);
      if (!journal.ok()) ::_exit(2);
      for (const auto& commit : commits) {
        for (const core::Record& record : commit) {
          if (!(*journal)->Append(record).ok()) ::_exit(3);
        }
        if (!(*journal)->Commit().ok()) ::_exit(4);
      }
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }

  static std::vector<core::Record> Commit(int n) {
    const std::string id = absl::StrCat("j-", n);
    core::EventAdded event{id, 1, {}};
    event.event.set_type("Submitted");
    core::IncarnationIssued issued{n + 1, {}};
    issued.reg.set_name(absl::StrCat("w", n));
    issued.reg.set_role(common::v1::ROLE_WORKER);
    return {core::JobSaved{id, std::string(300, static_cast<char>('a' + n))}, event,
            core::HistoryPage{id, 0, "page"}, core::NodeDrained{absl::StrCat("d", n), true},
            issued};
  }

  Files Read() const {
    Files files;
    for (const char* name : kFiles) {
      std::ifstream in(absl::StrCat(dir_, "/", name), std::ios::binary);
      files[name];
      if (in) files[name] = std::string(std::istreambuf_iterator<char>(in), {});
    }
    return files;
  }
  void Write(const Files& files) const {
    for (const auto& [name, bytes] : files) {
      const std::string path = absl::StrCat(dir_, "/", name);
      if (!bytes.has_value()) {
        ::unlink(path.c_str());
        continue;
      }
      std::ofstream(path, std::ios::binary | std::ios::trunc) << *bytes;
    }
  }

  static std::string Text(const core::DurableState& state) {
    std::string text = absl::StrCat("last ", state.last_incarnation, "\n");
    for (const auto& [name, node] : state.nodes) {
      absl::StrAppend(&text, name, " ", node.incarnation, " ", node.reg.ShortDebugString(), "\n");
    }
    for (const std::string& name : state.drained) absl::StrAppend(&text, "drained ", name, "\n");
    for (const auto& [id, job] : state.jobs) absl::StrAppend(&text, id, " ", job, "\n");
    for (const auto& [id, events] : state.events) {
      for (const auto& [number, event] : events) {
        absl::StrAppend(&text, id, " ", number, " ", event.ShortDebugString(), "\n");
      }
    }
    for (const auto& [id, pages] : state.history) {
      for (const auto& [number, page] : pages) {
        absl::StrAppend(&text, id, " page ", number, " ", page, "\n");
      }
    }
    return text;
  }
  absl::StatusOr<std::string> Load(const JournalOptions& options = {}) const {
    absl::StatusOr<std::unique_ptr<SqliteJournal>> journal = SqliteJournal::Open(dir_, options);
    if (!journal.ok()) return journal.status();
    const absl::StatusOr<core::DurableState> state = (*journal)->Load();
    if (!state.ok()) return state.status();
    return Text(*state);
  }

  // Writes `files`, one of them damaged, and checks the result of opening them.
  void Check(const Files& files, const std::string& good, const std::string& what) {
    Write(files);
    const absl::StatusOr<std::string> loaded = Load();
    if (loaded.ok()) {
      ++kept_;
      EXPECT_EQ(*loaded, good) << what;
      return;
    }
    ++refused_;
    EXPECT_THAT(std::string(loaded.status().message()), HasSubstr(absl::StrCat(dir_, "/journal.")))
        << what;
    // Files that a person may still repair are unchanged. SQLite may make an empty log.
    const Files after = Read();
    for (const char* name : {"journal.db", "journal.db-wal", "journal.mark"}) {
      const std::optional<std::string>& before = files.at(name);
      EXPECT_TRUE(after.at(name) == before || (!before.has_value() && after.at(name) == ""))
          << what << ": " << name << " was changed";
    }
  }

  const std::string dir_;
  int refused_ = 0;
  int kept_ = 0;
};

TEST_F(JournalDamageTest, NoDamageOfAnyFileLosesAnythingWithoutAWord) {
  {
    auto journal = SqliteJournal::Open(dir_);
    ASSERT_TRUE(journal.ok());
    for (int n = 0; n < 3; ++n) {
      for (const core::Record& record : Commit(n)) ASSERT_TRUE((*journal)->Append(record).ok());
      ASSERT_TRUE((*journal)->Commit().ok());
    }
  }
  CommitAndDie({Commit(3), Commit(4), Commit(5)});
  const Files whole = Read();
  for (const char* name : kFiles) ASSERT_TRUE(whole.at(name).has_value()) << name;
  const std::string good = *Load();
  ASSERT_THAT(good, HasSubstr("j-5 "));

  int damages = 0;
  for (const char* name : kFiles) {
    const std::string& bytes = *whole.at(name);
    Files files = whole;
    for (size_t at = 0; at < bytes.size(); at += kStride) {
      std::string bad = bytes;
      bad[at] = static_cast<char>(bad[at] ^ (1 << (at / kStride % 8)));
      files[name] = bad;
      Check(files, good, absl::StrFormat("a flipped bit at byte %d of %s", at, name));
      ++damages;
    }
    // Every boundary in the file: pages, frames and their headers, slots.
    const absl::string_view file = name;
    const size_t step = file == "journal.db"     ? 4096
                        : file == "journal.mark" ? kMarkSlot
                                                 : kWalFrame;
    for (size_t at = file == "journal.db-wal" ? 32 : step; at < bytes.size(); at += step) {
      for (const size_t cut : {at - 1, at, at + 1, at + 24}) {
        files[name] = bytes.substr(0, cut);
        Check(files, good, absl::StrFormat("%s cut to %d of %d bytes", name, cut, bytes.size()));
        ++damages;
      }
    }
    files[name] = "";
    Check(files, good, absl::StrCat("an empty ", name));
    files[name] = std::nullopt;
    Check(files, good, absl::StrCat("no ", name));
  }
  std::printf("%d damages: %d refused, %d without a loss\n", damages + 8, refused_, kept_);
  EXPECT_GT(refused_, damages / 4);
  EXPECT_GT(kept_, 0);
  Write(whole);
  EXPECT_EQ(*Load(), good);
}

// The reserve only keeps room free. Whatever happens to it, the journal opens, takes commits, and
// makes its reserve again if there is room.
TEST_F(JournalDamageTest, NoDamageOfTheReserveIsOneOfTheJournal) {
  constexpr int64_t kReserve = 16384;
  const JournalOptions options = {.accept_commits = {}, .reserve_bytes = kReserve};
  const std::string path = absl::StrCat(dir_, "/journal.reserve");
  CommitAndDie({Commit(0), Commit(1)});
  int n = 2;
  // Reads everything that was committed, and commits more.
  const auto check = [&](const std::string& what, bool low) {
    const absl::StatusOr<std::unique_ptr<SqliteJournal>> journal =
        SqliteJournal::Open(dir_, options);
    ASSERT_TRUE(journal.ok()) << what << ": " << journal.status();
    const absl::StatusOr<core::DurableState> state = (*journal)->Load();
    ASSERT_TRUE(state.ok()) << what << ": " << state.status();
    EXPECT_EQ(static_cast<int>(state->jobs.size()), n) << what;
    EXPECT_EQ((*journal)->low(), low) << what;
    for (const core::Record& record : Commit(n)) ASSERT_TRUE((*journal)->Append(record).ok());
    ASSERT_TRUE((*journal)->Commit().ok()) << what;
    ++n;
    struct stat file = {};
    ASSERT_EQ(::stat(path.c_str(), &file), 0) << what;
    if (low) return;
    EXPECT_EQ(file.st_size, kReserve) << what;
    EXPECT_GE(int64_t{file.st_blocks} * 512, kReserve) << what;
  };
  check("the reserve of a journal with other options", false);
  const auto write = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  };
  for (const int at : {0, 97, 4096, 16383}) {
    std::string bytes(kReserve, '\0');
    bytes[static_cast<size_t>(at)] = 1;
    write(bytes);
    check(absl::StrCat("a flipped bit at byte ", at), false);
  }
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{4096}, kReserve - 1, kReserve + 1}) {
    write(std::string(static_cast<size_t>(size), 'x'));
    check(absl::StrCat(size, " bytes"), false);
  }
  write("");
  ASSERT_EQ(::truncate(path.c_str(), kReserve), 0);
  check("a hole", false);
  ASSERT_EQ(::unlink(path.c_str()), 0);
  check("no reserve", false);
  ASSERT_EQ(::unlink(path.c_str()), 0);
  ASSERT_EQ(::mkdir(path.c_str(), 0700), 0);
  check("a folder", true);
}

TEST_F(JournalDamageTest, ARefusalSaysWhereAndWhatToDoAndAPersonMayGoOn) {
  CommitAndDie({Commit(0), Commit(1), Commit(2), Commit(3)});
  const Files whole = Read();
  const std::string wal = *whole.at("journal.db-wal");
  Files files = whole;
  std::string bad = wal;
  bad[bad.size() - 100] ^= 4;  // in the last commit
  files["journal.db-wal"] = bad;
  Write(files);
  const absl::Status refused = Load().status();
  EXPECT_TRUE(absl::IsDataLoss(refused)) << refused;
  const std::string message(refused.message());
  std::printf("%s\n", message.c_str());
  EXPECT_THAT(message, HasSubstr(absl::StrCat(dir_,
                                              "/journal.db: lacks commits that were durable: "
                                              "it holds 3, but journal.mark beside it has 4")));
  EXPECT_THAT(message, HasSubstr(absl::StrCat("of ", (wal.size() - 32) / kWalFrame)));
  EXPECT_THAT(message, HasSubstr("--accept-journal=3"));
  for (const int64_t other : {0, 2, 4}) {
    EXPECT_TRUE(absl::IsDataLoss(Load({.accept_commits = other}).status())) << other;
  }
  const absl::StatusOr<std::string> accepted = Load({.accept_commits = 3});
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_THAT(*accepted, HasSubstr("j-2 "));
  EXPECT_THAT(*accepted, Not(HasSubstr("j-3 ")));
  EXPECT_EQ(*Load(), *accepted);  // from then on it is complete
}

TEST_F(JournalDamageTest, ACrashBetweenTheCommitAndItsCountIsNone) {
  CommitAndDie({Commit(0), Commit(1)});
  const Files before = Read();
  CommitAndDie({Commit(2)});
  Files files = Read();
  files["journal.mark"] = before.at("journal.mark");  // as if the process had ended there
  Write(files);
  const absl::StatusOr<std::string> loaded = Load();
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(*loaded, HasSubstr("j-2 "));
}

TEST_F(JournalDamageTest, AnOlderCopyAndAnotherJournalAreRefused) {
  CommitAndDie({Commit(0)});
  const Files old = Read();
  CommitAndDie({Commit(1)});
  const Files newer = Read();
  Files files = old;
  files["journal.mark"] = newer.at("journal.mark");
  Write(files);
  EXPECT_THAT(std::string(Load().status().message()),
              HasSubstr("it holds 1, but journal.mark beside it has 2"));
  // A folder that was restored as a whole is accepted.
  Write(old);
  EXPECT_TRUE(Load().ok());

  for (const char* name : kFiles) ::unlink(absl::StrCat(dir_, "/", name).c_str());
  CommitAndDie({Commit(0), Commit(1), Commit(2)});
  files = Read();
  files["journal.mark"] = newer.at("journal.mark");
  Write(files);
  EXPECT_THAT(std::string(Load().status().message()), HasSubstr("belongs to another journal"));
  EXPECT_TRUE(Load({.accept_commits = 3}).ok());
}

}  // namespace
}  // namespace capstan::coordinator
