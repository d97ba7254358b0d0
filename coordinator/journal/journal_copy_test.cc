// Backups of a journal in use, and which backups a folder can be restored from.
#include "coordinator/journal/journal_copy.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "capstan/coordinator/v1/durable.pb.h"
#include "services/files/files.h"

namespace capstan::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class JournalCopyTest : public ::testing::Test {
 protected:
  JournalCopyTest() : dir_(*services::MakePrivateDir("capstan-backup")) {
    for (const char* name : {"state", "backup"}) {
      EXPECT_TRUE(services::EnsureDir(Path(name), 0700).ok());
    }
    journal_ = *SqliteJournal::Open(Path("state"));
  }
  ~JournalCopyTest() override {
    journal_.reset();
    (void)services::RemoveTree("/tmp", dir_);
  }

  std::string Path(const std::string& name) const { return absl::StrCat(dir_, "/", name); }

  // Makes one commit.
  void Commit(const std::string& id, size_t bytes = 40,
              common::v1::JobState state = common::v1::JOB_STATE_RUNNING) {
    v1::DurableJob job;
    job.set_job_id(id);
    job.set_state(state);
    job.set_request_id(std::string(bytes, 'x'));
    v1::DurableManifest& manifest = *job.add_manifests();
    manifest.mutable_saved()->set_uri(absl::StrCat("file://", Path("checkpoints"), "/", id));
    ASSERT_TRUE(journal_->Append(core::JobSaved{id, job.SerializeAsString()}).ok());
    ASSERT_TRUE(journal_->Commit().ok());
  }

  // Copies the file `name` of a running coordinator as it is now.
  void CopyHot(const std::string& name) {
    const auto bytes = services::ReadWholeFile(Path("state/" + name), 1 << 24);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    ASSERT_TRUE(services::WriteFileAtomically(Path("backup/" + name), *bytes).ok());
  }

  // Writes the same files as `capstan backup`.
  void WriteBackup(JournalCopy& copy) {
    const absl::StatusOr<int> fd = copy.Take();
    ASSERT_TRUE(fd.ok()) << fd.status();
    std::string bytes(1 << 24, '\0');
    const ssize_t size = ::pread(*fd, bytes.data(), bytes.size(), 0);
    ASSERT_GT(size, 0);
    bytes.resize(static_cast<size_t>(size));
    ::close(*fd);
    ASSERT_TRUE(services::WriteFileAtomically(Path("backup/journal.db"), bytes).ok());
    ASSERT_TRUE(
        services::WriteFileAtomically(Path("backup/journal.mark"), CommitMark::Text(copy.count()))
            .ok());
  }
  std::string WhyNot() const {
    const auto restored = RestoreJournal(Path("backup"), Path("restored"));
    EXPECT_FALSE(restored.ok());
    for (const char* name : {"journal.db", "journal.mark", "journal.restored"}) {
      EXPECT_NE(::access(Path(absl::StrCat("restored/", name)).c_str(), F_OK), 0) << name;
    }
    return std::string(restored.status().message());
  }
  std::vector<std::string> JobsIn(const std::string& folder) const {
    std::vector<std::string> ids;
    const auto journal = SqliteJournal::Open(Path(folder));
    EXPECT_TRUE(journal.ok()) << journal.status();
    if (!journal.ok()) return ids;
    const auto state = (*journal)->Load();
    EXPECT_TRUE(state.ok()) << state.status();
    if (!state.ok()) return ids;
    for (const auto& [id, job] : state->jobs) ids.push_back(id);
    return ids;
  }

  const std::string dir_;
  std::unique_ptr<SqliteJournal> journal_;
};

TEST_F(JournalCopyTest, ACopyHoldsWhatWasCommittedWhileItWasTaken) {
  for (const char* id : {"j-a", "j-b", "j-c"}) Commit(id, 20000);  // several pages each
  auto copy = JournalCopy::Begin(*journal_);
  ASSERT_TRUE(copy.ok()) << copy.status();
  absl::StatusOr<bool> whole = (*copy)->Step(1);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(whole.ok()) << whole.status();
    ASSERT_FALSE(*whole) << "a page at a time";
    Commit(i == 0 ? "j-a" : absl::StrCat("j-d", i), 9000);  // old pages change, new pages are added
    whole = (*copy)->Step(1);
  }
  while (whole.ok() && !*whole) whole = (*copy)->Step(1);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ((*copy)->count().commits, 7);
  EXPECT_TRUE(absl::IsFailedPrecondition((*copy)->Step(1).status()));
  WriteBackup(**copy);
  EXPECT_NE(::access(Path("state/journal.copy").c_str(), F_OK), 0);
  Commit("j-later");  // the journal continues, the copy does not

  const auto restored = RestoreJournal(Path("backup") + "/", Path("restored") + "/");
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->commits, 7);
  EXPECT_EQ(restored->jobs, 6);
  EXPECT_THAT(JobsIn("restored"), ElementsAre("j-a", "j-b", "j-c", "j-d1", "j-d2", "j-d3"));
  EXPECT_TRUE(RestoreJournal(Path("backup"), Path("twice")).ok()) << "a backup stays as it is";
}

TEST_F(JournalCopyTest, ACopyThatNobodyTakesIsRemoved) {
  Commit("j-a", 100000);
  {
    auto copy = JournalCopy::Begin(*journal_);
    ASSERT_TRUE(copy.ok()) << copy.status();
    ASSERT_TRUE((*copy)->Step(1).ok());
    EXPECT_EQ(::access(Path("state/journal.copy").c_str(), F_OK), 0);
  }
  EXPECT_NE(::access(Path("state/journal.copy").c_str(), F_OK), 0);
  Commit("j-b");
  EXPECT_TRUE(JournalCopy::Begin(*journal_).ok());
}

TEST_F(JournalCopyTest, ItIsSaidWhichCheckpointsAreNotHere) {
  Commit("j-a");
  Commit("j-b");
  Commit("j-ended", 40, common::v1::JOB_STATE_SUCCEEDED);
  ASSERT_TRUE(services::EnsureDir(Path("checkpoints/j-b")).ok());
  ASSERT_TRUE(services::WriteFileAtomically(Path("checkpoints/j-b/manifest.json"), "{}").ok());
  journal_.reset();  // stopped, so its folder may be copied as it is
  for (const char* name : {"journal.db", "journal.mark"}) CopyHot(name);
  const auto restored = RestoreJournal(Path("backup"), Path("restored"));
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->going, 2);
  EXPECT_THAT(restored->lacking, ElementsAre(Path("checkpoints/j-a")));
}

TEST_F(JournalCopyTest, ACopyOfARunningCoordinatorsFolderWithoutItsLogIsRefusedByName) {
  Commit("j-a");
  Commit("j-b");
  CopyHot("journal.db");
  CopyHot("journal.mark");
  EXPECT_THAT(WhyNot(), HasSubstr(absl::StrCat(
                            Path("backup"),
                            ": journal.db lacks commits that were durable: it holds none, but "
                            "journal.mark beside it has 2 (journal.db-wal does not exist). A "
                            "folder copied while its coordinator ran is not a backup: make one "
                            "with capstan backup")));
  // With the log, which nobody wrote to meanwhile, the copy is complete.
  CopyHot("journal.db-wal");
  EXPECT_TRUE(RestoreJournal(Path("backup"), Path("with-log")).ok());
  EXPECT_THAT(JobsIn("with-log"), SizeIs(2));
}

// All commits are still in the log, so the file alone looks like a new journal.
TEST_F(JournalCopyTest, AFileThatWasCopiedAloneIsNoNewJournal) {
  Commit("j-a");
  CopyHot("journal.db");
  EXPECT_THAT(WhyNot(), HasSubstr("journal.mark beside it is missing"));
  const auto opened = SqliteJournal::Open(Path("backup"));
  EXPECT_TRUE(absl::IsDataLoss(opened.status())) << opened.status();
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr("--accept-journal=0"));
  EXPECT_TRUE(SqliteJournal::Open(Path("backup"), {.accept_commits = 0}).ok());
}

TEST_F(JournalCopyTest, NothingIsPutOverAJournalOrUnderACoordinator) {
  Commit("j-a");
  const auto into = [&](const std::string& from, const std::string& to) {
    const auto restored = RestoreJournal(Path(from), Path(to));
    EXPECT_FALSE(restored.ok());
    return restored.status();
  };
  EXPECT_TRUE(absl::IsNotFound(into("backup", "restored")));
  CopyHot("journal.db");
  const absl::Status works = into("backup", "state");
  EXPECT_TRUE(absl::IsFailedPrecondition(works));
  EXPECT_THAT(std::string(works.message()), HasSubstr("another coordinator works here (process "));
  journal_.reset();
  const absl::Status there = into("backup", "state");
  EXPECT_TRUE(absl::IsFailedPrecondition(there));
  EXPECT_THAT(std::string(there.message()), HasSubstr("state: has a journal.db already"));
  EXPECT_THAT(JobsIn("state"), ElementsAre("j-a"));
}

}  // namespace
}  // namespace capstan::coordinator
