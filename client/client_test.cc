#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "client/exit_codes.h"
#include "client/job_json.h"
#include "client/job_view.h"
#include "client/old_runs.h"

namespace capstan::client {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

job::v1::Job RunningJob() {
  job::v1::Job job;
  job.set_job_id("lenet-x3n9");
  job.set_name("lenet");
  job.set_state(common::v1::JOB_STATE_RUNNING);
  auto& p = *job.mutable_progress();
  p.set_epoch(2);
  p.set_step(600);
  p.set_total_steps(1200);
  p.set_loss(0.5123456);
  p.set_accuracy(0.819);
  p.set_learning_rate(0.04);
  p.set_samples_per_second(4318.24);
  p.set_eta_seconds(209);
  job.mutable_resolved()->set_steps_per_epoch(400);
  job.mutable_spec()->mutable_training()->set_epochs(3);
  auto& e = *job.add_epochs();
  e.set_epoch(1);
  e.set_train_loss(0.9);
  e.set_train_accuracy(0.7);
  e.set_validation_accuracy(0.784);
  e.set_samples_per_second(4318.24);
  return job;
}

TEST(JobViewTest, EpochLineIsWhatMxnetUsersParse) {
  const job::v1::Job job = RunningJob();
  EXPECT_EQ(EpochLine(job, job.epochs(0)),
            "Epoch[1] Step[400] Speed: 4318.2 samples/sec train-loss=0.9000 train-accuracy=0.7000 "
            "validation-accuracy=0.7840");
}

TEST(JobViewTest, LiveLinesShowProgressAndAreCutToTheTerminal) {
  const std::string wide = LiveLines(RunningJob(), {.width = 200});
  EXPECT_THAT(
      wide,
      HasSubstr("RUNNING  epoch 2/3  step 600/1200   50% [############------------]  ETA 3m29s"));
  EXPECT_THAT(wide, HasSubstr("loss 0.5123   accuracy 81.9%   lr 0.04   4318 samples/s"));
  const std::string narrow = LiveLines(RunningJob(), {.width = 30});
  for (size_t begin = 0; begin <= narrow.size();) {
    const size_t end = std::min(narrow.find('\n', begin), narrow.size());
    EXPECT_LT(end - begin, 30u) << narrow;
    begin = end + 1;
  }
  EXPECT_THAT(narrow, Not(HasSubstr("\033")));
}

TEST(JobViewTest, SummaryEndsWithTwoLinesOfPython) {
  job::v1::Job job = RunningJob();
  job.set_state(common::v1::JOB_STATE_SUCCEEDED);
  job.set_checkpoint_uri("file:///out/lenet-x3n9/1-1200");
  job.set_weights_sha256("abc");
  const std::string text = Summary(job, {});
  EXPECT_THAT(text, HasSubstr("accuracy    0.7840 on the test set after epoch 1"));
  EXPECT_THAT(text,
              EndsWith("  from safetensors.numpy import load_file\n"
                       "  weights = load_file(\"/out/lenet-x3n9/1-1200/weights.safetensors\")\n"));
}

TEST(JobViewTest, HostileTextCannotDriveTheTerminal) {
  job::v1::Job job = RunningJob();
  job.set_state(common::v1::JOB_STATE_FAILED);
  job.set_message("bad \033[2J\nline");
  EXPECT_THAT(Summary(job, {}), HasSubstr("bad ?[2J?line"));
}

TEST(JobViewTest, ShortDurations) {
  EXPECT_EQ(ShortDuration(12.34), "12.3s");
  EXPECT_EQ(ShortDuration(209), "3m29s");
  EXPECT_EQ(ShortDuration(3720), "1h02m");
  EXPECT_EQ(ShortDuration(std::nan("")), "-");
}

TEST(JobJsonTest, EveryFieldIsPresentAndNonFiniteIsNull) {
  job::v1::Job job = RunningJob();
  job.mutable_progress()->set_loss(std::numeric_limits<double>::quiet_NaN());
  job.set_message("\xff");
  const auto json = nlohmann::json::parse(JobJson(job));
  EXPECT_EQ(json["state"], "RUNNING");
  EXPECT_EQ(json["progress"]["step"], 600);
  EXPECT_TRUE(json["progress"]["loss"].is_null());
  EXPECT_EQ(json["epochs"][0]["epoch"], 1);
  EXPECT_TRUE(json["epochs"][0]["validation_loss"].is_null());
  const auto empty = nlohmann::json::parse(JobJson({}));
  for (const char* key : {"job_id", "state", "reason", "message", "progress", "weights_sha256",
                          "checkpoint_uri", "samples_used", "epochs"}) {
    EXPECT_TRUE(empty.contains(key)) << key;
  }
}

TEST(ExitCodesTest, AreThoseOfTheInterface) {
  EXPECT_EQ(ExitCodeOf(common::v1::JOB_STATE_SUCCEEDED), 0);
  EXPECT_EQ(ExitCodeOf(common::v1::JOB_STATE_FAILED), 100);
  EXPECT_EQ(ExitCodeOf(common::v1::JOB_STATE_RUNNING), 101);
  EXPECT_EQ(ExitCodeOf(common::v1::JOB_STATE_CANCELLED), 103);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("")), 102);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::ResourceExhaustedError("")), 4);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("")), 2);
}

TEST(OldRunsTest, OnlyRunsAreRemovedOldestFirst) {
  namespace fs = std::filesystem;
  std::string pattern = (fs::temp_directory_path() / "capstan-runs-XXXXXX").string();
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  const fs::path root = pattern;
  const auto now = fs::file_time_type::clock::now();
  for (int i = 0; i < 4; ++i) {
    const fs::path run = root / ("run" + std::to_string(i));
    fs::create_directories(run);
    std::ofstream(run / "metrics.jsonl") << "{}\n";
    fs::last_write_time(run, now - std::chrono::hours(10 - i));
  }
  fs::create_directories(root / "mine");
  std::ofstream(root / "notes.txt") << "keep";
  const auto removed = RemoveOldRuns(root.string(), 2);
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_THAT(*removed, ElementsAre("run1", "run0"));
  EXPECT_TRUE(fs::exists(root / "run3"));
  EXPECT_TRUE(fs::exists(root / "mine"));
  EXPECT_TRUE(fs::exists(root / "notes.txt"));
  EXPECT_TRUE(RemoveOldRuns((root / "absent").string(), 1)->empty());
  fs::remove_all(root);
}

}  // namespace
}  // namespace capstan::client
