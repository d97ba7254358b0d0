#include "services/folders/folder_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "services/clock/clock.h"
#include "services/files/files.h"
#include "services/sync/mutex.h"

namespace capstan::services {
namespace {

TEST(FolderCheckTest, SaysWhatIsThereAndWhatIsNot) {
  const std::string folder = *MakePrivateDir("folders");
  ASSERT_TRUE(WriteFileAtomically(folder + "/file", "x").ok());
  const FolderCheck check({FolderFor(folder, job::v1::FOLDER_USE_CHECKPOINTS),
                           FolderFor(folder + "/missing", job::v1::FOLDER_USE_DATA),
                           FolderFor(folder + "/file", job::v1::FOLDER_USE_DATA),
                           FolderFor(folder, job::v1::FOLDER_USE_CHECKPOINTS)});
  const FolderReports reports = check.Wait(absl::Seconds(30));
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_TRUE(check.done());
  EXPECT_EQ(reports[0].error(), "");
  EXPECT_GT(reports[0].total_bytes(), 0);
  EXPECT_LE(reports[0].free_bytes(), reports[0].total_bytes());
  EXPECT_EQ(reports[1].error(), "No such file or directory");
  EXPECT_EQ(reports[1].total_bytes(), 0);
  EXPECT_EQ(reports[2].error(), "it is not a folder");
}

// Repeated checks start no further thread for a hung folder, and still get the results of the
// others.
TEST(FolderCheckTest, AFolderThatHangsKeepsOneThreadAndHidesNoOther) {
  Mutex mu;
  CondVar changed;
  bool hangs = true;  // guarded by mu, as everything below
  int looks = 0;
  const FolderCheck::LookFn look = [&](job::v1::FolderReport& report) {
    MutexLock lock(mu);
    if (report.path() == "/hung") {
      ++looks;
      while (hangs) changed.Wait(mu);
    }
    report.set_total_bytes(7);
  };
  const FolderReports folders = {FolderFor("/hung", job::v1::FOLDER_USE_DATA),
                                 FolderFor("/well", job::v1::FOLDER_USE_DATA)};
  std::vector<FolderCheck> checks;
  for (int i = 0; i < 20; ++i) checks.emplace_back(folders, look);
  const absl::Duration deadline = MonotonicNow() + absl::Seconds(30);
  for (const FolderCheck& check : checks) {
    FolderReports reports;
    do {
      reports = check.Wait(absl::Milliseconds(1));
    } while (reports[1].total_bytes() == 0 && MonotonicNow() < deadline);
    EXPECT_EQ(reports[1].error(), "");
    EXPECT_EQ(reports[0].error(), "its file system does not answer");
    EXPECT_FALSE(check.done());
  }
  {
    MutexLock lock(mu);
    EXPECT_LE(looks, 1);
    hangs = false;
    changed.NotifyAll();
  }
  for (const FolderCheck& check : checks) {
    EXPECT_EQ(check.Wait(absl::Seconds(30))[0].error(), "");
    EXPECT_TRUE(check.done());
  }
  EXPECT_EQ(FolderCheck(folders, look).Wait(absl::Seconds(30))[0].total_bytes(), 7);
  MutexLock lock(mu);
  EXPECT_EQ(looks, 2);
}

}  // namespace
}  // namespace capstan::services
