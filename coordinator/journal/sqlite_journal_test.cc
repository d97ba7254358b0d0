#include "coordinator/journal/sqlite_journal.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/files/files.h"

namespace capstan::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class JournalTest : public ::testing::Test {
 protected:
  JournalTest() : dir_(*services::MakePrivateDir("capstan-journal")) {}
  ~JournalTest() override { (void)services::RemoveTree("/tmp", dir_); }

  std::unique_ptr<SqliteJournal> Open() {
    absl::StatusOr<std::unique_ptr<SqliteJournal>> journal = SqliteJournal::Open(dir_);
    EXPECT_TRUE(journal.ok()) << journal.status();
    return journal.ok() ? *std::move(journal) : nullptr;
  }
  core::DurableState Load() { return *Open()->Load(); }

  static core::IncarnationIssued Node(const std::string& name, int64_t incarnation) {
    core::IncarnationIssued issued{incarnation, {}};
    issued.reg.set_name(name);
    issued.reg.set_role(common::v1::ROLE_PARAM_STORE);
    issued.reg.set_data_address("unix:/" + name);
    return issued;
  }
  static core::EventAdded Event(const std::string& job, int64_t number, const std::string& type) {
    core::EventAdded added{job, number, {}};
    added.event.set_type(type);
    return added;
  }

  // Runs SQL on the journal's file, as an accident would.
  void Sql(const std::string& sql) {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open((dir_ + "/journal.db").c_str(), &database), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(database);
    sqlite3_close(database);
  }
  absl::Status OpenAndLoad() {
    absl::StatusOr<std::unique_ptr<SqliteJournal>> journal = SqliteJournal::Open(dir_);
    return journal.ok() ? (*journal)->Load().status() : journal.status();
  }

  const std::string dir_;
};

TEST_F(JournalTest, WhatWasCommittedIsThereAndTheNewestOfEachCounts) {
  {
    const auto journal = Open();
    const std::string binary("\0\xff spec", 7);
    for (const core::Record& record :
         std::initializer_list<core::Record>{Node("s0", 1),
                                             Node("w0", 2),
                                             Node("s0", 3),
                                             core::JobSaved{"a-1", "old"},
                                             core::JobSaved{"a-1", binary},
                                             core::JobSaved{"b-2", ""},
                                             Event("a-1", 1, "Submitted"),
                                             Event("a-1", 2, "Admitted"),
                                             Event("a-1", 3, "Started"),
                                             Event("b-2", 1, "Submitted"),
                                             core::EventDropped{"a-1", 2},
                                             core::HistoryPage{"a-1", 0, "first"},
                                             core::HistoryPage{"a-1", 1, "second"},
                                             core::HistoryPage{"a-1", 2, "third"},
                                             core::HistoryPage{"a-1", 0, "again"},
                                             core::HistoryPage{"a-1", 2, ""},
                                             core::HistoryPage{"b-2", 0, "gone"},
                                             core::NodeForgotten{"w0"},
                                             core::NodeDrained{"w0", true},
                                             core::NodeDrained{"w1", true},
                                             core::NodeDrained{"w1", false},
                                             core::JobForgotten{"b-2"}}) {
      ASSERT_TRUE(journal->Append(record).ok());
    }
    ASSERT_TRUE(journal->Commit().ok());
    ASSERT_TRUE(journal->Commit().ok());  // nothing to do
  }
  const core::DurableState state = Load();
  EXPECT_EQ(state.last_incarnation, 3);
  ASSERT_EQ(state.nodes.size(), 1u);
  EXPECT_EQ(state.nodes.at("s0").incarnation, 3);
  EXPECT_EQ(state.nodes.at("s0").reg.data_address(), "unix:/s0");
  ASSERT_EQ(state.jobs.size(), 1u);
  EXPECT_EQ(state.jobs.at("a-1"), std::string("\0\xff spec", 7));
  ASSERT_EQ(state.events.at("a-1").size(), 2u);
  EXPECT_EQ(state.events.at("a-1").at(3).type(), "Started");
  EXPECT_EQ(state.events.count("b-2"), 0u);
  EXPECT_THAT(state.drained, ElementsAre("w0"));
  EXPECT_THAT(state.history,
              ElementsAre(Pair("a-1", ElementsAre(Pair(0, "again"), Pair(1, "second")))));
}

TEST_F(JournalTest, AJournalOfTheFirstSchemaIsBroughtUpToDate) {
  {
    const auto journal = Open();
    ASSERT_TRUE(journal->Append(core::JobSaved{"a-1", "first"}).ok());
    ASSERT_TRUE(journal->Commit().ok());
  }
  Sql("DROP TABLE history; DROP TABLE drained; DROP TABLE commits; PRAGMA user_version=1");
  // Beside a mark it is an old backup, not a journal that was always so old.
  EXPECT_TRUE(absl::IsDataLoss(OpenAndLoad()));
  ASSERT_EQ(::unlink((dir_ + "/journal.mark").c_str()), 0);
  {
    const auto journal = Open();
    EXPECT_EQ(journal->Load()->jobs.at("a-1"), "first");
    ASSERT_TRUE(journal->Append(core::HistoryPage{"a-1", 0, "page"}).ok());
    ASSERT_TRUE(journal->Commit().ok());
  }
  EXPECT_EQ(Load().history.at("a-1").at(0), "page");
}

// A process that ends between two statements leaves a commit complete or absent.
TEST_F(JournalTest, ACommitIsWholeOrNotThereWhereverTheProcessEnds) {
  { Open(); }
  for (int statements = 0; statements <= 4; ++statements) {
    const pid_t child = ::fork();
    if (child == 0) {
      auto journal = SqliteJournal::Open(dir_);
      if (!journal.ok()) ::_exit(2);
      const std::string id = absl::StrCat("j-", statements);
      const core::Record records[] = {core::JobSaved{id, "one"}, Event(id, 1, "Submitted"),
                                      Event(id, 2, "Admitted")};
      for (int i = 0; i < statements && i < 3; ++i) {
        if (!(*journal)->Append(records[i]).ok()) ::_exit(3);
      }
      if (statements == 4 && !(*journal)->Commit().ok()) ::_exit(4);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
    const core::DurableState state = Load();
    const bool committed = statements == 4;
    EXPECT_EQ(state.jobs.count(absl::StrCat("j-", statements)), committed ? 1u : 0u) << statements;
    EXPECT_EQ(state.events.size(), committed ? 1u : 0u) << statements;
  }
}

// After a kill at any moment, everything reported as durable is there, and each commit is complete.
TEST_F(JournalTest, WhatWasToldToBeDurableOutlivesAKill) {
  { Open(); }
  int64_t told = 0;
  for (int round = 0; round < 5; ++round) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const int64_t first = told;
    const pid_t child = ::fork();
    if (child == 0) {
      auto journal = SqliteJournal::Open(dir_);
      if (!journal.ok()) ::_exit(2);
      for (int64_t n = first + 1;; ++n) {
        const std::string id = absl::StrCat("j-", n);
        if (!(*journal)->Append(core::JobSaved{id, std::string(2000, 'x')}).ok() ||
            !(*journal)->Append(Event(id, 1, "Submitted")).ok() || !(*journal)->Commit().ok() ||
            ::write(pipe[1], &n, sizeof(n)) != sizeof(n)) {
          ::_exit(3);
        }
      }
    }
    ::close(pipe[1]);
    const int64_t enough = told + 10 + 7 * round;
    while (told < enough && ::read(pipe[0], &told, sizeof(told)) == sizeof(told)) {
    }
    ASSERT_GE(told, enough);
    ::kill(child, SIGKILL);
    while (::read(pipe[0], &told, sizeof(told)) == sizeof(told)) {  // reported before the kill
    }
    ::close(pipe[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const core::DurableState state = Load();
    const auto jobs = static_cast<int64_t>(state.jobs.size());
    EXPECT_TRUE(jobs == told || jobs == told + 1) << jobs << " jobs, " << told << " told";
    EXPECT_EQ(state.events.size(), state.jobs.size());
    told = jobs;
  }
}

TEST_F(JournalTest, TwoCoordinatorsDoNotShareAFolder) {
  const auto journal = Open();
  const absl::Status status = SqliteJournal::Open(dir_).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr(absl::StrCat(dir_, ": another coordinator works here (process ", ::getpid(), ")")));
}

TEST_F(JournalTest, AJournalOfANewerVersionIsRefusedAndLeftAlone) {
  { Open(); }
  Sql("PRAGMA user_version=4");
  const absl::Status status = OpenAndLoad();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("journal.db: a newer version of Capstan"));
  Sql("PRAGMA user_version=1; PRAGMA application_id=7");
  EXPECT_TRUE(absl::IsDataLoss(OpenAndLoad()));
}

TEST_F(JournalTest, AValueThatWasNotWrittenSoIsRefused) {
  {
    const auto journal = Open();
    ASSERT_TRUE(journal->Append(Node("s0", 1)).ok());
    ASSERT_TRUE(journal->Append(core::JobSaved{"a-1", "first"}).ok());
    ASSERT_TRUE(journal->Append(core::JobSaved{"b-2", "other"}).ok());
    ASSERT_TRUE(journal->Append(Event("a-1", 1, "Submitted")).ok());
    ASSERT_TRUE(journal->Append(core::HistoryPage{"a-1", 0, "page"}).ok());
    ASSERT_TRUE(journal->Commit().ok());
  }
  ASSERT_TRUE(OpenAndLoad().ok());
  const struct {
    const char* damage;
    const char* repair;
    const char* names;
  } kCases[] = {
      {"UPDATE jobs SET job = CAST('firsu' AS BLOB) WHERE id = 'a-1'",
       "UPDATE jobs SET job = CAST('first' AS BLOB) WHERE id = 'a-1'", "job a-1"},
      {"UPDATE jobs SET id = 'c-3' WHERE id = 'b-2'", "UPDATE jobs SET id = 'b-2' WHERE id = 'c-3'",
       "job c-3"},
      {"UPDATE events SET number = 2", "UPDATE events SET number = 1", "an event of job a-1"},
      {"UPDATE history SET number = 1", "UPDATE history SET number = 0",
       "a page of the history of job a-1"},
      {"UPDATE nodes SET incarnation = 0", "UPDATE nodes SET incarnation = 1", "node s0"},
  };
  for (const auto& c : kCases) {
    Sql(c.damage);
    const absl::Status status = OpenAndLoad();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.names));
    EXPECT_THAT(std::string(status.message()), HasSubstr("journal.db: is damaged"));
    Sql(c.repair);
    EXPECT_TRUE(OpenAndLoad().ok());
  }
}

TEST_F(JournalTest, ADamagedFileIsRefused) {
  {
    const auto journal = Open();
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE(
          journal->Append(core::JobSaved{absl::StrCat("j-", i), std::string(3000, 'x')}).ok());
    }
    ASSERT_TRUE(journal->Commit().ok());
  }
  const std::string path = dir_ + "/journal.db";
  const absl::StatusOr<std::string> good = services::ReadWholeFile(path, 1 << 24);
  ASSERT_TRUE(good.ok());
  ASSERT_GT(good->size(), 40 * 4096u);
  int refused = 0;
  for (size_t page = 0; page * 4096 < good->size(); page += 3) {
    std::string bad = *good;
    for (size_t i = 0; i < 64; ++i) bad[page * 4096 + i] = static_cast<char>(0x5a);
    ASSERT_TRUE(services::WriteFileAtomically(path, bad).ok());
    const absl::Status status = OpenAndLoad();
    if (status.ok()) continue;
    ++refused;
    EXPECT_TRUE(absl::IsDataLoss(status)) << "page " << page << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("journal.db"));
  }
  EXPECT_EQ(refused, static_cast<int>((good->size() / 4096 + 2) / 3));
  ASSERT_TRUE(services::WriteFileAtomically(path, good->substr(0, good->size() / 2)).ok());
  EXPECT_TRUE(absl::IsDataLoss(OpenAndLoad()));
  ASSERT_TRUE(services::WriteFileAtomically(path, *good).ok());
  EXPECT_TRUE(OpenAndLoad().ok());
}

TEST_F(JournalTest, AFullDiskIsAnErrorAndWhatWasCommittedStays) {
  const std::string small = dir_ + "/small";
  ASSERT_TRUE(services::EnsureDir(small, 0700).ok());
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=1m") != 0) {
    std::fprintf(stderr, "SKIPPED: no right to mount a tmpfs here\n");
    GTEST_SKIP() << "no right to mount a tmpfs here";
  }
  {
    auto journal = SqliteJournal::Open(small);
    ASSERT_TRUE(journal.ok()) << journal.status();
    int good = 0;
    absl::Status status;
    while (good < 1000) {
      status =
          (*journal)->Append(core::JobSaved{absl::StrCat("j-", good), std::string(10000, 'x')});
      if (status.ok()) status = (*journal)->Commit();
      if (!status.ok()) break;
      ++good;
    }
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("journal.db"));
    EXPECT_EQ((*journal)->Commit(), status);  // and every later call fails likewise
    EXPECT_TRUE((*journal)->low());
    journal->reset();
    const absl::StatusOr<std::unique_ptr<SqliteJournal>> again = SqliteJournal::Open(small);
    ASSERT_TRUE(again.ok()) << again.status();
    const absl::StatusOr<core::DurableState> state = (*again)->Load();
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(static_cast<int>(state->jobs.size()), good);
  }
  EXPECT_EQ(::umount(small.c_str()), 0);
}

// On a full disk, the reserve is given up first. Then a commit fails and changes nothing, and the
// same call succeeds once there is room.
TEST_F(JournalTest, TheReserveIsGivenUpFirstAndWhatFailedIsCommittedOnceThereIsRoom) {
  const std::string disk = dir_ + "/disk";
  ASSERT_TRUE(services::EnsureDir(disk, 0700).ok());
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=8m") != 0) {
    std::fprintf(stderr, "SKIPPED: no right to mount a tmpfs here\n");
    GTEST_SKIP() << "no right to mount a tmpfs here";
  }
  {
    auto journal = SqliteJournal::Open(disk);
    ASSERT_TRUE(journal.ok()) << journal.status();
    EXPECT_FALSE((*journal)->low());
    struct stat reserve = {};
    ASSERT_EQ(::stat((disk + "/journal.reserve").c_str(), &reserve), 0);
    EXPECT_EQ(reserve.st_size, 512 << 10);
    const std::string filler = disk + "/filler";
    const int fd = ::open(filler.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    const std::string zeros(4096, '\0');
    while (::write(fd, zeros.data(), zeros.size()) > 0) {
    }
    ::close(fd);

    int good = 0;
    absl::Status status;
    while (status.ok() && good < 1000) {
      const std::string id = absl::StrCat("j-", good);
      ASSERT_TRUE((*journal)->Append(core::JobSaved{id, std::string(10000, 'x')}).ok());
      ASSERT_TRUE((*journal)->Append(core::NodeDrained{id, true}).ok());
      status = (*journal)->Commit();
      if (status.ok()) ++good;
    }
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_GE(good, 10);  // in the room of the reserve
    EXPECT_TRUE((*journal)->low());
    ASSERT_TRUE((*journal)->Append(Event("j-0", 1, "WhileFull")).ok());
    EXPECT_FALSE((*journal)->Commit().ok());

    ASSERT_EQ(::unlink(filler.c_str()), 0);
    status = (*journal)->Commit();
    EXPECT_TRUE(status.ok()) << status;
    ++good;
    journal->reset();
    const absl::StatusOr<std::unique_ptr<SqliteJournal>> again = SqliteJournal::Open(disk);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_FALSE((*again)->low());  // the reserve exists again
    const absl::StatusOr<core::DurableState> state = (*again)->Load();
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(static_cast<int>(state->jobs.size()), good);
    EXPECT_EQ(static_cast<int>(state->drained.size()), good);
    EXPECT_EQ(state->events.at("j-0").at(1).type(), "WhileFull");
  }
  EXPECT_EQ(::umount(disk.c_str()), 0);
}

}  // namespace
}  // namespace capstan::coordinator
