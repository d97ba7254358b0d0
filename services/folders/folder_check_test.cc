#include "services/folders/folder_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "services/files/files.h"

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
  EXPECT_EQ(reports[2].error(), "it is no folder");
}

}  // namespace
}  // namespace capstan::services
