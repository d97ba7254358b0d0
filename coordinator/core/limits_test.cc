// What one user, one node or one job may take: the others' is left to them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/types/span.h"
#include "coordinator/core/job_proto.h"
#include "coordinator/core/newest_events.h"
#include "coordinator/core/test_world.h"

namespace capstan::coordinator::core {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::string SubmitAndCancel(World& world, const std::string& owner) {
  world.caller_ = {.name = owner, .any_job = false};
  const std::string id = world.Submit(World::Spec(5, 0));
  world.now_ += absl::Seconds(1);
  world.Cancel(id);
  return id;
}

TEST(LimitsTest, OneOwnersThousandsCostTheOthersNone) {
  CoreOptions options;
  options.max_ended_jobs = 6;
  World world(options);
  std::vector<std::string> of_ann, of_bob, of_eve;
  for (int i = 0; i < 2; ++i) of_ann.push_back(SubmitAndCancel(world, "ann"));
  of_bob.push_back(SubmitAndCancel(world, "bob"));
  for (int i = 0; i < 50; ++i) of_eve.push_back(SubmitAndCancel(world, "eve"));
  for (const std::string& id : {of_ann[0], of_ann[1], of_bob[0]}) {
    EXPECT_NE(world.core_.Peek(id), nullptr) << id;
  }
  for (int i = 0; i < 50; ++i) {  // her newest
    EXPECT_EQ(world.core_.Peek(of_eve[i]) != nullptr, i >= 47) << i;
  }
  // By age within an owner, and among owners with equally many.
  of_bob.push_back(SubmitAndCancel(world, "bob"));
  EXPECT_EQ(world.core_.Peek(of_eve[47]), nullptr);
  of_bob.push_back(SubmitAndCancel(world, "bob"));
  EXPECT_EQ(world.core_.Peek(of_bob[0]), nullptr);
  EXPECT_NE(world.core_.Peek(of_ann[0]), nullptr);
  EXPECT_EQ(world.journal_.state().jobs.size(), 6u);
}

TEST(LimitsTest, JobsAreListedInPages) {
  World world;
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(world.Submit(World::Spec(5, 0)));
  const auto first = world.core_.ListJobs(2, {});
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[1].job_id(), ids[3]);
  const auto second = world.core_.ListJobs(2, {}, world.core_.Peek(ids[3])->sequence());
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(second[0].job_id(), ids[2]);
  const auto last = world.core_.ListJobs(2, {}, world.core_.Peek(ids[1])->sequence());
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].job_id(), ids[0]);
  EXPECT_TRUE(world.core_.ListJobs(2, {}, world.core_.Peek(ids[0])->sequence()).empty());
}

TEST(LimitsTest, OfTheEventsOfAllJobsTheNewestAreTaken) {
  World world;
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) {
    ids.push_back(world.Submit(World::Spec(5, 0)));
    world.now_ += absl::Seconds(1);
  }
  world.Cancel(ids[1]);
  world.now_ += absl::Seconds(1);
  world.Cancel(ids[0]);
  // Of each job Submitted; of two CancelRequested and Cancelled.
  const EventPlace oldest[] = {{ids[0], 1}, {ids[1], 1}};
  const EventPlace newest[] = {{ids[2], 1}, {ids[1], 2}, {ids[1], 3}, {ids[0], 2}, {ids[0], 3}};
  EXPECT_THAT(NewestEvents(world.core_, 5), ElementsAreArray(newest));
  const auto all = NewestEvents(world.core_, 1000);
  ASSERT_EQ(all.size(), 7u);
  EXPECT_THAT(absl::MakeSpan(all).subspan(0, 2), ElementsAreArray(oldest));
  EXPECT_THAT(absl::MakeSpan(all).subspan(2), ElementsAreArray(newest));
  EXPECT_TRUE(NewestEvents(world.core_, 0).empty());
}

TEST(LimitsTest, ANodeThatIsLostForLongIsForgotten) {
  CoreOptions options;
  options.lost_node_kept = absl::Seconds(20);
  World world(options);
  const SessionId gone = world.Worker("w0"), here = world.Worker("w1");
  world.Do(NodeDisconnected{gone, /*goodbye=*/true});
  world.Pass(absl::Seconds(19), {here});
  ASSERT_NE(world.core_.nodes().Find("w0"), nullptr);
  EXPECT_EQ(world.journal_.state().nodes.count("w0"), 1u);
  world.Pass(absl::Seconds(2), {here});
  EXPECT_EQ(world.core_.nodes().Find("w0"), nullptr);
  EXPECT_EQ(world.journal_.state().nodes.count("w0"), 0u);
  EXPECT_NE(world.core_.nodes().Find("w1"), nullptr);
}

TEST(LimitsTest, OfLostWorkersTheNewestAreTold) {
  const CoreOptions options;
  Job job(Submission(), options);
  for (int i = 0; i < 500; ++i) {
    Task task;
    task.index = i;
    task.lost = i != 0;
    job.tasks().push_back(std::move(task));
  }
  const job::v1::Job told = ToProto(job, /*with_history=*/false);
  ASSERT_EQ(told.workers_size(), 17);
  EXPECT_EQ(told.workers(0).index(), 0);
  EXPECT_EQ(told.workers(1).index(), 484);
  EXPECT_EQ(told.workers(16).index(), 499);
}

void LogLines(World& world, SessionId session, const std::string& id, int lines) {
  node::v1::ConnectRequest request;
  request.mutable_logs()->set_job_id(id);
  for (int i = 0; i < lines; ++i) {
    request.mutable_logs()->add_lines()->set_text(std::string(1000, 'x'));
  }
  world.Do(NodeMessage{session, request});
}

TEST(LimitsTest, LogsOfLivingJobsAreBoundedInSum) {
  CoreOptions options;
  options.max_all_log_bytes = 100000;
  World world(options);
  const SessionId a = world.Worker("a"), b = world.Worker("b");
  const std::string small = world.Submit(World::Spec(1, 0));
  const std::string large = world.Submit(World::Spec(1, 0));
  LogLines(world, a, small, 10);
  const int64_t before = world.core_.Logs(small)->bytes();
  for (int i = 0; i < 20; ++i) {
    LogLines(world, b, large, 50);
    EXPECT_LE(world.core_.Logs(small)->bytes() + world.core_.Logs(large)->bytes(), 100000);
  }
  EXPECT_EQ(world.core_.Logs(small)->bytes(), before);  // the long one pays
  EXPECT_GT(world.core_.Logs(large)->bytes(), 30000);
  EXPECT_GT(world.core_.Logs(large)->dropped(), 0);
}

TEST(LimitsTest, LogsOfEndedJobsGoBeforeThoseOfLivingOnes) {
  CoreOptions options;
  options.max_all_log_bytes = 100000;
  World world(options);
  const SessionId a = world.Worker("a"), b = world.Worker("b");
  const std::string ends = world.Submit(World::Spec(1, 0));
  const std::string lives = world.Submit(World::Spec(1, 0));
  LogLines(world, a, ends, 20);
  LogLines(world, b, lives, 60);
  world.Cancel(ends);
  world.Pass(absl::Seconds(3), {a, b});
  ASSERT_TRUE(world.core_.HasEnded(ends));
  const int64_t before = world.core_.Logs(lives)->bytes();
  LogLines(world, b, lives, 30);
  EXPECT_EQ(world.core_.Logs(ends)->bytes(), 0);
  EXPECT_GT(world.core_.Logs(lives)->bytes(), before);
  EXPECT_EQ(world.core_.Logs(lives)->dropped(), 0);
}

TEST(LimitsTest, IdsBeginWithALetterSoNoFolderOfAJobLooksLikeACheckpoint) {
  World world;
  EXPECT_THAT(world.Submit(World::Spec(1, 0, "999")), MatchesRegex("job-999-[a-z0-9]{6}"));
  EXPECT_THAT(world.Submit(World::Spec(1, 0, "net")), MatchesRegex("net-[a-z0-9]{6}"));
}

TEST(LimitsTest, APathInAnotherJobsFolderIsRefused) {
  World world;
  job::v1::JobSpec spec = World::Spec(1, 0);
  spec.mutable_checkpoint()->set_storage_path("file:///mine//./net");
  const std::string id = world.Submit(spec);
  ASSERT_NE(id, "");
  for (const char* below : {"", "/", "/9-9", "/./a/b"}) {
    spec.mutable_checkpoint()->set_storage_path(absl::StrCat("file:///mine/net/", id, below));
    EXPECT_EQ(world.Submit(spec), "") << below;
    EXPECT_THAT(world.LastReply().status.message(), HasSubstr("lies in the folder of job " + id));
  }
  for (const char* path : {"/mine/net", "/mine", "/mine/net/other"}) {
    spec.mutable_checkpoint()->set_storage_path(absl::StrCat("file://", path));
    EXPECT_NE(world.Submit(spec), "") << path;
  }
  spec.mutable_checkpoint()->set_storage_path(absl::StrCat("file:///elsewhere/", id));
  EXPECT_NE(world.Submit(spec), "");  // the name alone is not the folder
}

// Its new gang is given back within the event that it came with.
TEST(LimitsTest, AJobWhoseTimeIsOverKeepsNoDeviceFromTheNextOne) {
  World world;
  const SessionId old = world.Worker("w0");
  job::v1::JobSpec spec = World::Spec(1, 0);
  spec.mutable_limits()->set_active_deadline_seconds(10);
  const std::string first = world.Submit(spec);
  const std::string next = world.Submit(World::Spec(1, 0));
  const std::string last = world.Submit(World::Spec(1, 0));
  ASSERT_EQ(world.Job(first).state(), common::v1::JOB_STATE_STARTING);
  world.now_ += absl::Seconds(12);  // and no event has come
  world.Do(NodeDisconnected{old});
  world.Worker("w0");  // its service has started anew
  EXPECT_EQ(world.Job(first).state(), common::v1::JOB_STATE_FAILED);
  EXPECT_EQ(world.Job(first).reason(), "DeadlineExceeded");
  EXPECT_EQ(world.Job(next).state(), common::v1::JOB_STATE_STARTING);
  EXPECT_EQ(world.Job(last).message(),
            absl::StrCat("needs 1 worker with 1 free device, 0 of 1 are free (", next, " has it)"));
}

}  // namespace
}  // namespace capstan::coordinator::core
