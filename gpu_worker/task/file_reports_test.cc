#include "gpu_worker/task/file_reports.h"

#include "gtest/gtest.h"

namespace capstan::gpu_worker {
namespace {

common::v1::FileInfo File(const std::string& name) {
  common::v1::FileInfo file;
  file.set_name(name);
  return file;
}

node::v1::TaskState Report(const FileReports& reports) {
  node::v1::TaskState state;
  state.set_weights_sha256("old");
  reports.Fill(state);
  return state;
}

TEST(FileReportsTest, AVersionIsReportedWhenAllOfItIsThereAndUntilItIsTaken) {
  FileReports reports;
  reports.Reset(3);
  reports.Expect(10, false);
  reports.SetLead(10, "lead");
  EXPECT_FALSE(Report(reports).has_files());
  EXPECT_EQ(Report(reports).weights_sha256(), "");
  reports.Expect(12, true);
  reports.Expect(12, true);
  reports.Written(12, File("shard-0.safetensors"));
  EXPECT_FALSE(Report(reports).has_files());  // the weights are missing
  reports.SetWeights(12, "ab");
  reports.Written(12, File("weights.safetensors"));
  EXPECT_EQ(Report(reports).files().step(), 12);
  reports.Written(10, File("shard-0.safetensors"));
  EXPECT_EQ(Report(reports).files().step(), 10);  // the oldest first
  EXPECT_EQ(Report(reports).files().lineage(), 3);
  EXPECT_EQ(Report(reports).files().lead_snapshot(), "lead");
  EXPECT_EQ(Report(reports).weights_sha256(), "");
  reports.Taken(2, 10);  // for another lineage
  EXPECT_EQ(Report(reports).files().step(), 10);
  reports.Taken(3, 10);
  EXPECT_EQ(Report(reports).files().files_size(), 2);
  EXPECT_EQ(Report(reports).weights_sha256(), "ab");
  reports.Reset(4);
  EXPECT_FALSE(Report(reports).has_files());
}

TEST(FileReportsTest, AnErrorStaysWhenTheOtherFileOfTheVersionIsWritten) {
  FileReports reports;
  reports.Reset(1);
  reports.Expect(2, false);
  reports.Expect(2, false);
  EXPECT_FALSE(reports.Failed(2, "disk full"));
  reports.Written(2, File("residuals-0.safetensors"));
  EXPECT_EQ(Report(reports).files().error(), "disk full");
  EXPECT_EQ(Report(reports).files().files_size(), 0);
  reports.Taken(1, 2);
  reports.Expect(4, true);
  reports.Expect(4, true);
  EXPECT_TRUE(reports.Failed(4, "disk full"));
  reports.Written(4, File("residuals-0.safetensors"));
  EXPECT_EQ(Report(reports).files().error(), "disk full");
  reports.Written(4, File("weights.safetensors"));
  EXPECT_EQ(Report(reports).files().error(), "");
  EXPECT_EQ(Report(reports).files().files_size(), 2);
}

TEST(FileReportsTest, AFailureGivesUpAVersionButTheLast) {
  FileReports reports;
  reports.Reset(1);
  reports.Expect(2, false);
  EXPECT_FALSE(reports.Failed(2, "disk full"));
  EXPECT_EQ(Report(reports).files().error(), "disk full");
  reports.Taken(1, 2);
  EXPECT_FALSE(Report(reports).has_files());
  EXPECT_FALSE(reports.Failed(2, "again"));

  reports.Expect(4, true);
  EXPECT_TRUE(reports.Failed(4, "disk full"));
  EXPECT_EQ(Report(reports).files().error(), "disk full");
  reports.Taken(1, 4);
  EXPECT_TRUE(reports.Failed(4, "disk full"));
  reports.Written(4, File("shard-0.safetensors"));
  EXPECT_EQ(Report(reports).files().error(), "");
  EXPECT_EQ(Report(reports).files().files_size(), 1);
}

// The full disk had room for one of two files, so the other one must still be written.
TEST(FileReportsTest, AFileThatFailedIsMissingUntilItIsWritten) {
  FileReports reports;
  reports.Reset(1);
  reports.Expect(4, true);
  reports.Expect(4, true);
  EXPECT_TRUE(reports.Failed(4, "disk full"));
  reports.SetWeights(4, "ab");
  reports.Written(4, File("weights.safetensors"));
  EXPECT_EQ(Report(reports).files().error(), "disk full");
  EXPECT_EQ(Report(reports).files().files_size(), 0);
  reports.Taken(1, 4);
  EXPECT_TRUE(reports.Failed(4, "disk full"));
  EXPECT_EQ(Report(reports).files().error(), "disk full");
  EXPECT_EQ(Report(reports).files().files_size(), 0);
  EXPECT_EQ(Report(reports).weights_sha256(), "");
  reports.Written(4, File("shard-0.safetensors"));
  EXPECT_EQ(Report(reports).files().error(), "");
  EXPECT_EQ(Report(reports).files().files_size(), 2);
  EXPECT_EQ(Report(reports).weights_sha256(), "ab");
}

}  // namespace
}  // namespace capstan::gpu_worker
