#include "coordinator/event_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/files/files.h"

namespace capstan::coordinator {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

const absl::Time kWall = absl::FromUnixSeconds(1'700'000'000);

class EventFilesTest : public testing::Test {
 protected:
  EventFilesTest() : job_(What(true), core::CoreOptions()) {
    Resolve(job_);
    job_.standing().Set(common::v1::JOB_STATE_RUNNING, "", "");
  }

  static core::Submission What(bool tensorboard) {
    core::Submission what;
    what.id = "j-1";
    if (tensorboard) what.spec.mutable_outputs()->mutable_metrics()->set_tensorboard(true);
    return what;
  }

  static void Resolve(core::Job& job) {
    job::v1::ResolvedSpec resolved;
    resolved.set_steps_per_epoch(10);
    resolved.set_total_steps(30);
    resolved.set_storage_path("/out/j-1");
    job.resolution().Set(resolved);
    job.history().SetTotalSteps(30);
  }

  void AddPoint(int64_t step, double loss) {
    job::v1::MetricPoint point;
    point.set_step(step);
    point.mutable_time()->set_seconds(1000 + step);
    point.set_loss(loss);
    job_.history().metrics().Add(std::move(point));
  }

  void AddEvaluation(int32_t epoch, double accuracy) {
    node::v1::LeadState lead;
    common::v1::EpochRecord& record = *lead.add_epochs();
    record.set_epoch(epoch);
    record.set_validation_accuracy(accuracy);
    job_.history().AddEpochs(lead);
  }

  static std::string Loss(int64_t step, double loss) {
    return training::EventRecord({1000.0 + static_cast<double>(step), step, {{"loss", loss}}});
  }

  void OnJob(absl::Duration now) { files_.OnJob(job_, now, kWall); }

  core::Job job_;
  std::vector<std::pair<std::string, std::string>> appended_;
  EventFiles files_{[this](const std::string& job_id, EventFiles::Bytes bytes) {
    EXPECT_EQ(job_id, "j-1");
    EXPECT_EQ(bytes.head, training::EventFileHead(1'700'000'000));
    appended_.emplace_back(std::move(bytes.path), std::move(bytes.events));
  }};
};

const char kPath[] = "/out/j-1/events.out.tfevents.1700000000.j-1";

TEST_F(EventFilesTest, WhatIsNewIsAppendedFromTimeToTime) {
  OnJob(absl::Seconds(1));
  EXPECT_THAT(appended_, IsEmpty());
  AddPoint(1, 2);
  OnJob(absl::Seconds(1));
  EXPECT_THAT(appended_, ElementsAre(Pair(kPath, Loss(1, 2))));
  AddPoint(2, 1);
  OnJob(absl::Seconds(2));
  EXPECT_EQ(appended_.size(), 1);
  AddPoint(3, 0.5);
  OnJob(absl::Seconds(3));
  ASSERT_EQ(appended_.size(), 2);
  EXPECT_EQ(appended_[1], std::make_pair(std::string(kPath), Loss(2, 1) + Loss(3, 0.5)));
  OnJob(absl::Seconds(9));
  EXPECT_EQ(appended_.size(), 2);
}

TEST_F(EventFilesTest, AnEvaluationMayComeAfterThePointsOfItsStep) {
  AddPoint(10, 2);
  OnJob(absl::Seconds(1));
  AddEvaluation(1, 0.75);
  OnJob(absl::Seconds(9));
  ASSERT_EQ(appended_.size(), 2);
  EXPECT_EQ(appended_[1].second,
            training::EventRecord({1'700'000'000, 10, {{"validation_accuracy", 0.75}}}));
}

TEST_F(EventFilesTest, StepsThatAreTrainedAgainAreNotWrittenTwice) {
  AddPoint(1, 2);
  AddPoint(2, 1);
  OnJob(absl::Seconds(1));
  AddPoint(1, 2);  // drops the point of step 2
  OnJob(absl::Seconds(4));
  EXPECT_EQ(appended_.size(), 1);
  AddPoint(2, 1);
  AddPoint(3, 0.5);
  OnJob(absl::Seconds(7));
  ASSERT_EQ(appended_.size(), 2);
  EXPECT_EQ(appended_[1].second, Loss(3, 0.5));
}

TEST_F(EventFilesTest, TheEndIsWrittenAtOnce) {
  AddPoint(1, 2);
  OnJob(absl::Seconds(1));
  AddPoint(2, 1);
  job_.standing().Set(common::v1::JOB_STATE_SUCCEEDED, "", "");
  OnJob(absl::Seconds(1));
  ASSERT_EQ(appended_.size(), 2);
  EXPECT_EQ(appended_[1].second, Loss(2, 1));
}

TEST_F(EventFilesTest, WhatIsKnownIsWrittenBeforeAJobRests) {
  AddPoint(1, 2);
  OnJob(absl::Seconds(1));
  AddPoint(2, 1);
  job_.standing().Set(common::v1::JOB_STATE_SUSPENDED, "", "");
  OnJob(absl::Seconds(1));
  EXPECT_EQ(appended_.size(), 2);
}

TEST_F(EventFilesTest, AnotherCoordinatorBeginsAnotherFile) {
  AddPoint(1, 2);
  AddEvaluation(1, 0.5);
  files_.OnRestored(job_);
  OnJob(absl::Seconds(1));
  EXPECT_THAT(appended_, IsEmpty());
  AddPoint(2, 1);
  OnJob(absl::Seconds(2));
  EXPECT_THAT(appended_, ElementsAre(Pair(kPath, Loss(2, 1))));
}

TEST_F(EventFilesTest, OnlyJobsThatAskForIt) {
  core::Job other(What(false), core::CoreOptions());
  Resolve(other);
  job::v1::MetricPoint point;
  point.set_step(1);
  point.set_loss(1);
  other.history().metrics().Add(point);
  files_.OnJob(other, absl::Seconds(1), kWall);
  core::Job waiting(What(true), core::CoreOptions());  // its data are not known yet
  files_.OnJob(waiting, absl::Seconds(1), kWall);
  EXPECT_THAT(appended_, IsEmpty());
}

TEST(EventFilesAppendTest, AppendsAndMakesTheFolder) {
  const std::string folder = testing::TempDir() + "/event_files_test";
  const std::string path = folder + "/events";
  (void)::unlink(path.c_str());
  ASSERT_EQ(EventFiles::Append({path, "head", "ab"}), absl::OkStatus());
  ASSERT_EQ(EventFiles::Append({path, "head", "cd"}), absl::OkStatus());
  EXPECT_EQ(*services::ReadWholeFile(path, 100), "headabcd");
  // A link is not followed, and nobody waits for the reader of a pipe.
  const std::string link = folder + "/link", pipe = folder + "/pipe";
  (void)::unlink(link.c_str());
  (void)::unlink(pipe.c_str());
  ASSERT_EQ(::symlink(path.c_str(), link.c_str()), 0);
  EXPECT_THAT(std::string(EventFiles::Append({link, "", "ef"}).message()), HasSubstr("link"));
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_FALSE(EventFiles::Append({pipe, "", "ef"}).ok());
  EXPECT_EQ(*services::ReadWholeFile(path, 100), "headabcd");
}

}  // namespace
}  // namespace capstan::coordinator
