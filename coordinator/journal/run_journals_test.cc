#include "coordinator/journal/run_journals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "capstan/coordinator/v1/durable.pb.h"
#include "coordinator/core/metric_history.h"
#include "coordinator/journal/sqlite_journal.h"
#include "services/files/files.h"

namespace capstan::coordinator {
namespace {

namespace fs = std::filesystem;
using common::v1::JOB_STATE_RUNNING;
using common::v1::JOB_STATE_SUCCEEDED;
using common::v1::JOB_STATE_SUSPENDED;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class RunJournalsTest : public ::testing::Test {
 protected:
  RunJournalsTest() : root_(*services::MakePrivateDir("capstan-runs")) {}
  ~RunJournalsTest() override { (void)services::RemoveTree("/tmp", root_.string()); }

  // A run whose job was submitted at `second`. Its coordinator lives as long as the returned
  // journal.
  std::unique_ptr<SqliteJournal> AddRun(const std::string& folder, const std::string& id,
                                        common::v1::JobState state, int64_t second) {
    const std::string path = (root_ / folder / "state").string();
    EXPECT_TRUE(services::EnsureDir(path, 0700).ok());
    auto journal = SqliteJournal::Open(path, {.accept_commits = {}, .reserve_bytes = 4096});
    EXPECT_TRUE(journal.ok()) << journal.status();
    v1::DurableJob job;
    job.set_job_id(id);
    job.set_sequence(1);
    job.set_request_id("the-request");
    job.set_state(state);
    job.mutable_submitted_at()->set_seconds(second);
    job.add_manifests()->mutable_saved()->set_id("1-40");
    job.mutable_progress()->mutable_progress()->set_step(40);
    EXPECT_TRUE((*journal)->Append(core::JobSaved{id, job.SerializeAsString()}).ok());
    EXPECT_TRUE((*journal)->Append(core::EventAdded{id, 1, {}}).ok());
    core::MetricHistory history(10);
    job::v1::MetricPoint point;
    point.set_step(47);
    point.set_loss(0.25);
    history.Add(point);
    for (const auto& [number, page] : history.TakeChangedPages()) {
      EXPECT_TRUE((*journal)->Append(core::HistoryPage{id, number, page}).ok());
    }
    EXPECT_TRUE((*journal)->Commit().ok());
    return *std::move(journal);
  }
  absl::StatusOr<core::DurableState> Read(const std::string& below = ".") {
    return ReadRunJournals((root_ / below).string());
  }
  static v1::DurableJob JobOf(const core::DurableState& state, const std::string& id) {
    v1::DurableJob job;
    EXPECT_TRUE(job.ParseFromString(state.jobs.at(id)));
    return job;
  }

  const fs::path root_;
};

TEST_F(RunJournalsTest, AllRunsOfAFolderInTheOrderOfTheirSubmission) {
  AddRun("b-2", "b-2", JOB_STATE_SUCCEEDED, 20);
  AddRun("a-3", "a-3", JOB_STATE_SUCCEEDED, 30);
  AddRun("c-1", "c-1", JOB_STATE_SUCCEEDED, 10);
  fs::create_directories(root_ / "mine");
  const auto state = Read();
  ASSERT_TRUE(state.ok()) << state.status();
  ASSERT_THAT(state->jobs, SizeIs(3));
  EXPECT_EQ(JobOf(*state, "c-1").sequence(), 1);
  EXPECT_EQ(JobOf(*state, "b-2").sequence(), 2);
  EXPECT_EQ(JobOf(*state, "a-3").sequence(), 3);
  EXPECT_NE(JobOf(*state, "b-2").request_id(), JobOf(*state, "a-3").request_id());
  EXPECT_THAT(state->events.at("a-3"), SizeIs(1));
  EXPECT_THAT(state->history.at("a-3"), SizeIs(1));
  EXPECT_TRUE(state->nodes.empty());
  EXPECT_EQ(JobOf(*state, "a-3").state(), JOB_STATE_SUCCEEDED);
}

TEST_F(RunJournalsTest, OneAloneByItsOwnFolder) {
  AddRun("a-3", "a-3", JOB_STATE_SUCCEEDED, 30);
  AddRun("b-2", "b-2", JOB_STATE_SUCCEEDED, 20);
  const auto state = Read("a-3/.");
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_THAT(state->jobs, SizeIs(1));
  EXPECT_EQ(state->jobs.count("a-3"), 1u);
}

TEST_F(RunJournalsTest, OneThatNobodyTrainsAnyMoreIsInterruptedAndOneThatLivesIsNot) {
  const auto live = AddRun("live", "live", JOB_STATE_RUNNING, 20);
  AddRun("dead", "dead", JOB_STATE_RUNNING, 10);
  const auto state = Read();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(JobOf(*state, "live").state(), JOB_STATE_RUNNING);
  const v1::DurableJob dead = JobOf(*state, "dead");
  EXPECT_EQ(dead.state(), JOB_STATE_SUSPENDED);
  EXPECT_EQ(dead.reason(), "Interrupted");
  EXPECT_THAT(dead.progress().message(), HasSubstr("capstan run --resume goes on from checkpoint"));
  // The progress is that of the history.
  EXPECT_EQ(dead.progress().progress().step(), 47);
  EXPECT_EQ(dead.progress().progress().loss(), 0.25);
  // It was read while its coordinator worked, which continues.
  EXPECT_TRUE(live->Append(core::EventAdded{"live", 2, {}}).ok());
  EXPECT_TRUE(live->Commit().ok());
  EXPECT_THAT(Read()->events.at("live"), SizeIs(2));
}

TEST_F(RunJournalsTest, NothingInTheFolderChanges) {
  AddRun("a", "a", JOB_STATE_RUNNING, 10);
  const auto files = [this] {
    std::vector<std::string> out;
    for (const auto& entry : fs::recursive_directory_iterator(root_)) {
      if (!entry.is_regular_file()) continue;
      const auto time = fs::last_write_time(entry.path()).time_since_epoch().count();
      out.push_back(absl::StrCat(entry.path().string(), " ", entry.file_size(), " ", time));
    }
    std::sort(out.begin(), out.end());
    return out;
  };
  const std::vector<std::string> before = files();
  ASSERT_TRUE(Read().ok());
  EXPECT_EQ(files(), before);
}

TEST_F(RunJournalsTest, ACopyOfARunCountsOnce) {
  AddRun("a", "a", JOB_STATE_SUCCEEDED, 10);
  fs::copy(root_ / "a", root_ / "A-copy", fs::copy_options::recursive);
  EXPECT_THAT(Read()->jobs, SizeIs(1));
}

TEST_F(RunJournalsTest, ADamagedOneIsLeftOutAndAloneItIsNamed) {
  AddRun("good", "good", JOB_STATE_SUCCEEDED, 10);
  AddRun("bad", "bad", JOB_STATE_SUCCEEDED, 20);
  std::ofstream(root_ / "bad/state/journal.db", std::ios::trunc) << "no database at all";
  const auto state = Read();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->jobs.count("good"), 1u);
  EXPECT_THAT(state->jobs, SizeIs(1));
  EXPECT_THAT(std::string(Read("bad").status().message()), HasSubstr("bad/state/journal.db"));
}

TEST_F(RunJournalsTest, AFolderWithoutRunsIsSaid) {
  EXPECT_TRUE(absl::IsNotFound(Read().status()));
  EXPECT_FALSE(Read("absent").ok());
}

}  // namespace
}  // namespace capstan::coordinator
