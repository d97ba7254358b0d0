#include "client/run_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "absl/cleanup/cleanup.h"
#include "services/files/files.h"

namespace capstan::client {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::UnorderedElementsAre;

class RunFolderTest : public ::testing::Test {
 protected:
  RunFolderTest() : root_(*services::MakePrivateDir("capstan-runs")) {}
  ~RunFolderTest() override { (void)services::RemoveTree("/tmp", root_.string()); }

  // Adds a run whose last write was `age` ago.
  fs::path AddRun(const std::string& name, std::chrono::minutes age) {
    const fs::path run = root_ / name;
    fs::create_directories(run);
    std::ofstream(run / "metrics.jsonl") << "{}\n";
    const auto time = fs::file_time_type::clock::now() - age;
    fs::last_write_time(run / "metrics.jsonl", time);
    fs::last_write_time(run, time);
    return run;
  }
  std::vector<std::string> Left() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  const fs::path root_;
};

TEST_F(RunFolderTest, OnlyRunsAreRemovedOldestFirst) {
  for (int i = 0; i < 4; ++i) AddRun("run" + std::to_string(i), std::chrono::hours(10 - i));
  fs::create_directories(root_ / "mine");
  std::ofstream(root_ / "notes.txt") << "keep";
  const auto removed = RemoveOldRuns(root_.string(), 2);
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_THAT(removed->removed, ElementsAre("run1", "run0"));
  EXPECT_THAT(removed->live, IsEmpty());
  EXPECT_THAT(Left(), UnorderedElementsAre("run3", "run2", "mine", "notes.txt"));
  EXPECT_THAT(RemoveOldRuns((root_ / "absent").string(), 1)->removed, IsEmpty());
}

TEST_F(RunFolderTest, ARunWhoseStateIsLockedStaysHoweverOldItIs) {
  const fs::path live = AddRun("live", std::chrono::hours(20));
  AddRun("done", std::chrono::hours(30));
  ASSERT_EQ(*MakeRunState(live.string()), (live / "state").string());
  ASSERT_TRUE(MakeRunState((root_ / "done").string()).ok());
  EXPECT_FALSE(IsLive(live.string()));
  // Take the lock as a coordinator does.
  const int fd = open((live / "state/lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
  {
    const absl::Cleanup unlock = [fd] { close(fd); };
    EXPECT_TRUE(IsLive(live.string()));
    EXPECT_TRUE(absl::IsFailedPrecondition(MakeRunState(live.string()).status()));
    const auto removed = RemoveOldRuns(root_.string(), 0);
    ASSERT_TRUE(removed.ok()) << removed.status();
    EXPECT_THAT(removed->removed, ElementsAre("done"));
    EXPECT_THAT(removed->live, ElementsAre("live"));
    EXPECT_TRUE(fs::exists(live / "metrics.jsonl"));
  }
  EXPECT_THAT(RemoveOldRuns(root_.string(), 0)->removed, ElementsAre("live"));
}

TEST_F(RunFolderTest, OneWithoutStateIsLiveWhileItIsWrittenTo) {
  AddRun("fresh", std::chrono::minutes(1));
  AddRun("old", std::chrono::minutes(11));
  const auto runs = FindRuns(root_.string());
  ASSERT_TRUE(runs.ok()) << runs.status();
  ASSERT_EQ(runs->size(), 2u);
  EXPECT_EQ((*runs)[0].job_id, "fresh");
  EXPECT_TRUE((*runs)[0].live);
  EXPECT_FALSE((*runs)[1].live);
  EXPECT_THAT(RemoveOldRuns(root_.string(), 0)->removed, ElementsAre("old"));
}

TEST_F(RunFolderTest, LinksAreNoRuns) {
  const fs::path run = AddRun("run", std::chrono::hours(1));
  fs::create_directory_symlink(run, root_ / "link");
  EXPECT_EQ(FindRuns(root_.string())->size(), 1u);
}

TEST_F(RunFolderTest, ANewOneHasTheIdOfAJobAndIsNeverOneThatIsThere) {
  const auto id = MakeRunFolder(root_.string(), "lenet-x");
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_THAT(*id, MatchesRegex("lenet-x-[a-z0-9]{6}"));
  EXPECT_TRUE(fs::is_directory(root_ / *id));
  EXPECT_THAT(*MakeRunFolder(root_.string(), "3d-net"), MatchesRegex("job-3d-net-[a-z0-9]{6}"));
  EXPECT_THAT(FindRuns(root_.string())->size(), 0u);  // they contain no files of a job yet
  EXPECT_FALSE(MakeRunFolder((root_ / "absent").string(), "x").ok());
}

TEST_F(RunFolderTest, AFolderHasRunsThatCanBeLookedAtOrIsOne) {
  EXPECT_THAT(std::string(CheckRunsIn((root_ / "absent").string()).message()),
              HasSubstr("absent: there is no such folder"));
  const fs::path run = AddRun("old", std::chrono::hours(1));
  EXPECT_THAT(std::string(CheckRunsIn(root_.string()).message()),
              HasSubstr("has no run that can be viewed"));
  fs::create_directories(run / "state");
  std::ofstream(run / "state/journal.db") << "x";
  EXPECT_TRUE(CheckRunsIn(root_.string()).ok());
  EXPECT_TRUE(CheckRunsIn(run.string()).ok());
}

TEST_F(RunFolderTest, APersonNamesItByItsIdOrItsPath) {
  const fs::path run = root_ / "capstan-out/toy-1";
  fs::create_directories(run / "state");
  const fs::path before = fs::current_path();
  fs::current_path(root_);
  const absl::Cleanup back = [&before] { fs::current_path(before); };
  EXPECT_THAT(std::string(FindRunFolder("toy-1").status().message()),
              HasSubstr("capstan-out/toy-1: has no state/journal.db"));
  std::ofstream(run / "state/journal.db") << "x";
  EXPECT_EQ(*FindRunFolder("toy-1"), "capstan-out/toy-1");
  EXPECT_EQ(*FindRunFolder(run.string()), run.string());
  EXPECT_EQ(*FindRunFolder("./capstan-out/toy-1/"), "./capstan-out/toy-1/");
  EXPECT_TRUE(absl::IsNotFound(FindRunFolder("toy-2").status()));
  EXPECT_TRUE(absl::IsNotFound(FindRunFolder("./toy-1").status()));
  EXPECT_EQ(RunName(run.string()), "toy-1");

  fs::current_path(root_ / "capstan-out");
  EXPECT_EQ(*FindRunFolder("toy-1"), "toy-1");  // a folder in the working directory
  EXPECT_EQ(*FindRunFolder("toy-1/."), "toy-1/.");
  EXPECT_EQ(RunName(run.string()), run.string());
}

TEST_F(RunFolderTest, APersonNamesItByTheBeginningOfItsIdOrAsTheLast) {
  const fs::path before = fs::current_path();
  fs::current_path(root_);
  const absl::Cleanup back = [&before] { fs::current_path(before); };
  EXPECT_TRUE(absl::IsNotFound(FindRunFolder("@last").status()));
  const auto now = fs::file_time_type::clock::now();
  const auto add = [&](const std::string& id, std::chrono::minutes started, bool has_journal) {
    const fs::path state = root_ / "capstan-out" / id / "state";
    fs::create_directories(state);
    if (has_journal) std::ofstream(state / "journal.db") << "x";
    std::ofstream(state / "lock") << "1";
    fs::last_write_time(state / "lock", now - started);
  };
  add("toy-1", std::chrono::hours(1), true);
  add("toy-2", std::chrono::hours(3), true);
  add("net-1", std::chrono::hours(2), true);
  add("tom-1", std::chrono::minutes(1), false);  // no journal: it cannot be looked at
  EXPECT_EQ(*FindRunFolder("@last"), "capstan-out/toy-1");
  EXPECT_EQ(*FindRunFolder("n"), "capstan-out/net-1");
  EXPECT_EQ(*FindRunFolder("toy-2"), "capstan-out/toy-2");
  const absl::Status several = FindRunFolder("to").status();
  EXPECT_TRUE(absl::IsInvalidArgument(several)) << several;
  EXPECT_THAT(std::string(several.message()), HasSubstr("begin with 'to': toy-1, toy-2"));
  EXPECT_TRUE(absl::IsNotFound(FindRunFolder("x").status()));
  EXPECT_TRUE(absl::IsNotFound(FindRunFolder("./n").status()));
  add("toy-2", std::chrono::minutes(0), true);  // resumed
  EXPECT_EQ(*FindRunFolder("@last"), "capstan-out/toy-2");
}

}  // namespace
}  // namespace capstan::client
