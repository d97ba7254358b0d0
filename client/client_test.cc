#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/checkpoint_name.h"
#include "client/context_store.h"
#include "client/coordinator_address.h"
#include "client/job_client.h"
#include "client/job_name.h"
#include "client/job_source.h"
#include "client/text/describe_text.h"
#include "client/text/exit_codes.h"
#include "client/text/job_json.h"
#include "client/text/job_view.h"
#include "client/text/log_text.h"
#include "client/text/number_text.h"
#include "client/text/reference_spec.h"
#include "client/text/text_table.h"
#include "services/clock/clock.h"
#include "services/files/files.h"
#include "services/proto_json/proto_json.h"

namespace capstan::client {
namespace {

using services::ProtoJson;

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

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

// A job whose targets are numbers has no accuracy.
job::v1::Job RunningRegression() {
  job::v1::Job job = RunningJob();
  job.mutable_spec()->mutable_training()->set_loss("mean_squared_error");
  job.mutable_progress()->clear_accuracy();
  job.mutable_epochs(0)->clear_train_accuracy();
  job.mutable_epochs(0)->clear_validation_accuracy();
  job.mutable_epochs(0)->set_validation_loss(0.25);
  return job;
}

TEST(NumberTextTest, WhatIsNotFiniteIsNamed) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(NumberText(0.1234567, 6), "0.123457");
  EXPECT_EQ(NumberText(kInfinity, 6), "inf");
  EXPECT_EQ(NumberText(-kInfinity, 6), "-inf");
  for (const double sign : {1.0, -1.0}) {
    EXPECT_EQ(NumberText(std::copysign(std::nan(""), sign), 6), "nan");
  }
}

TEST(JobViewTest, NumbersAsTargetsHaveALossAlone) {
  job::v1::Job job = RunningRegression();
  EXPECT_EQ(EpochLine(job, job.epochs(0)),
            "Epoch[1] Step[400] Speed: 4318.2 samples/sec train-loss=0.9 validation-loss=0.25");
  job::v1::Job small = job;  // targets of 1e-4
  small.mutable_epochs(0)->set_validation_loss(1.43413e-8);
  EXPECT_THAT(EpochLine(small, small.epochs(0)), HasSubstr(" validation-loss=1.43413e-08"));
  EXPECT_THAT(LiveLines(job, {.width = 200}),
              HasSubstr("loss 0.512346   lr 0.04   4318 samples/s"));
  EXPECT_THAT(LiveLines(job, {.width = 30}), HasSubstr("loss 0.512346   4318 samples/"));
  job.set_state(common::v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(Summary(job, {}), HasSubstr("\nloss        0.25 on the test set after epoch 1\n"));
  job.mutable_epochs(0)->clear_validation_loss();
  EXPECT_THAT(Summary(job, {}), HasSubstr("\nloss        0.9 on the training set after epoch 1\n"));
  EXPECT_THAT(EpochLine(job, job.epochs(0)), EndsWith(" train-loss=0.9"));
  // It was evaluated, and the loss was not finite.
  job.mutable_resolved()->set_evaluation_blocks(3);
  job.mutable_resolved()->set_evaluate_every_steps(400);
  EXPECT_THAT(EpochLine(job, job.epochs(0)), EndsWith(" train-loss=0.9 validation-loss=nan"));
  EXPECT_THAT(Summary(job, {}), HasSubstr("\nloss        nan on the test set after epoch 1\n"));
  job.mutable_epochs(0)->clear_train_loss();
  job.mutable_resolved()->set_evaluate_every_steps(800);
  EXPECT_THAT(EpochLine(job, job.epochs(0)), EndsWith(" train-loss=nan"));
  job.mutable_progress()->set_total_steps(300);  // the last version is always evaluated
  EXPECT_THAT(EpochLine(job, job.epochs(0)), EndsWith(" train-loss=nan validation-loss=nan"));
  EXPECT_THAT(absl::StrCat(EpochLine(job, job.epochs(0)), LiveLines(job, {}), Summary(job, {})),
              Not(HasSubstr("accuracy")));
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

TEST(JobViewTest, WhereItIsNarrowTheBarGoesFirstAndTheEndLast) {
  EXPECT_THAT(LiveLines(RunningJob(), {.width = 60}),
              StartsWith("RUNNING  epoch 2/3  step 600/1200   50% [###---]  ETA 3m29s\n"));
  EXPECT_THAT(LiveLines(RunningJob(), {.width = 52}),
              StartsWith("RUNNING  epoch 2/3  step 600/1200   50%  ETA 3m29s\n"));
  EXPECT_THAT(LiveLines(RunningJob(), {.width = 45}),
              StartsWith("RUNNING  step 600/1200   50%  ETA 3m29s\n"));
  EXPECT_THAT(LiveLines(RunningJob(), {.width = 30}),
              StartsWith("RUNNING   50%  ETA 3m29s\nloss 0.5123   4318 samples/s"));
  job::v1::Job job = RunningJob();
  job.set_message("waits for lanes 2,3 of worker w1");
  EXPECT_THAT(LiveLines(job, {.width = 60}), EndsWith("\nwaits for lanes 2,3 of worker w1"));
}

TEST(JobViewTest, ColoursTakeNoRoom) {
  const std::string plain = LiveLines(RunningJob(), {.width = 60});
  const std::string painted = LiveLines(RunningJob(), {.width = 60, .color = true});
  EXPECT_EQ(absl::StrReplaceAll(painted, {{"\033[36m", ""}, {"\033[0m", ""}}), plain);
}

TEST(JobViewTest, WhatKeepsAJobFromBeingSavedIsALineOfItsOwn) {
  job::v1::Job job = RunningJob();
  EXPECT_EQ(SaveTroubleOf(job).text, "");
  job::v1::Event* event = job.add_events();
  event->set_type("CheckpointFailed");
  event->set_message("step 500: shard 0 on host a: write /out: No space left on device");
  EXPECT_EQ(SaveTroubleOf(job).text, "");  // a later checkpoint was saved
  job.add_conditions("CHECKPOINT_DEGRADED");
  EXPECT_EQ(SaveTroubleOf(job).text,
            "no checkpoint: step 500: shard 0 on host a: write /out: No space left on device");
  EXPECT_FALSE(SaveTroubleOf(job).at_end);
  EXPECT_THAT(LiveLines(job, {.width = 200}), EndsWith("\n" + SaveTroubleOf(job).text));

  job.mutable_progress()->set_step(job.progress().total_steps());
  job.set_message("cannot save step 1200: No space left on device: write /out (shard 0 on host a)");
  EXPECT_EQ(SaveTroubleOf(job).text, job.message());
  EXPECT_TRUE(SaveTroubleOf(job).at_end);
  EXPECT_THAT(LiveLines(job, {.width = 59}),
              EndsWith("\ncannot save step 1200: No space left on device: write /out"));
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

TEST(JobViewTest, SkippedStepsAreSaidAtTheEnd) {
  job::v1::Job job = RunningJob();
  job.set_state(common::v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(Summary(job, {}), Not(HasSubstr("skipped")));
  job.mutable_progress()->set_skipped_steps(2);
  const std::string said = "2 steps changed nothing, because loss or gradient was not finite\n";
  EXPECT_THAT(Summary(job, {}), HasSubstr("\nskipped     " + said));
  EXPECT_THAT(DescribeText(job, {}), HasSubstr("\nSkipped     " + said));
  EXPECT_THAT(JobJson(job), HasSubstr("\"skipped_steps\""));
}

TEST(JobViewTest, HostileTextCannotDriveTheTerminal) {
  job::v1::Job job = RunningJob();
  job.set_state(common::v1::JOB_STATE_FAILED);
  job.set_message("bad \033[2J\nline");
  EXPECT_THAT(Summary(job, {}), HasSubstr("bad ?[2J?line"));
}

TEST(JobViewTest, WhatWasAskedForIsUnderWayOrDone) {
  EXPECT_EQ(CancelledText(common::v1::JOB_STATE_RUNNING), "cancelling");
  EXPECT_EQ(CancelledText(common::v1::JOB_STATE_CANCELLED), "CANCELLED");
  EXPECT_EQ(CancelledText(common::v1::JOB_STATE_SUCCEEDED), "SUCCEEDED");
  EXPECT_EQ(SuspendedText(common::v1::JOB_STATE_RUNNING), "suspending: saves first");
  EXPECT_EQ(SuspendedText(common::v1::JOB_STATE_RECOVERING), "suspending: saves first");
  EXPECT_EQ(SuspendedText(common::v1::JOB_STATE_SUSPENDED), "SUSPENDED");
}

TEST(JobViewTest, ShortDurations) {
  EXPECT_EQ(ShortDuration(12.34), "12.3s");
  EXPECT_EQ(ShortDuration(209), "3m29s");
  EXPECT_EQ(ShortDuration(3720), "1h02m");
  EXPECT_EQ(ShortDuration(std::nan("")), "-");
}

TEST(JobSourceTest, AnErrorOfThePlanHasThePlaceOfItsKey) {
  const JobPlaces places{"job.yaml", {{"training.global_batch_size", {9, 22}}, {"model", {4, 1}}}};
  EXPECT_EQ(ErrorLine(places, "'training.global_batch_size' is 70000, the training set has 60000"),
            "job.yaml:9:22: error: 'training.global_batch_size' is 70000, the training set has "
            "60000\n");
  EXPECT_EQ(ErrorLine(places, "'model.graph' is refused"),
            "job.yaml:4:1: error: 'model.graph' is refused\n");  // the line of the group
  EXPECT_EQ(ErrorLine(places, "'resources.num_shards' is 256"),
            "job.yaml: error: 'resources.num_shards' is 256\n");  // from --set or a default
  EXPECT_EQ(ErrorLine(places, "/data: no such folder"), "capstan: /data: no such folder\n");
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

TEST(JobJsonTest, ADescriptionHasSpecAndEventsWithIntegersAsNumbers) {
  job::v1::Job job = RunningJob();
  job.mutable_spec()->mutable_data()->set_train_samples(60000);
  (*job.mutable_spec()->mutable_labels())["team"] = "vision";
  auto& event = *job.add_events();
  event.mutable_time()->set_seconds(1767323045);
  event.mutable_time()->set_nanos(678000000);
  event.set_type("CheckpointSaved");
  event.set_step(500);
  const auto json = nlohmann::json::parse(DescriptionJson(job));
  EXPECT_EQ(json["spec"]["data"]["train_samples"], 60000);
  EXPECT_EQ(json["spec"]["labels"]["team"], "vision");
  EXPECT_EQ(json["events"][0]["time"], "2026-01-02T03:04:05.678Z");
  EXPECT_EQ(json["events"][0]["step"], 500);
  for (const char* key : {"conditions", "checkpoints", "max_restarts", "retry_at"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
}

TEST(ProtoJsonTest, BytesAreHexAndEnumsHaveNoPrefix) {
  job::v1::NodeInfo node;
  node.set_role(common::v1::ROLE_PARAM_STORE);
  node.set_incarnation(int64_t{1} << 53);
  const auto json = ProtoJson(node);
  EXPECT_EQ(json["role"], "PARAM_STORE");
  EXPECT_EQ(json["incarnation"], int64_t{1} << 53);
  common::v1::FileInfo file;
  file.set_sha256(std::string("\x01\xff", 2));
  EXPECT_EQ(ProtoJson(file)["sha256"], "01ff");
}

TEST(LogTextTest, ChatterIsWhatNobodyMustKnow) {
  const std::string time = "time=2026-01-02T03:04:05.000Z ";
  EXPECT_TRUE(IsChatter(time + "level=info event=view job=j generation=1"));
  EXPECT_TRUE(IsChatter(time + "level=debug event=x"));
  EXPECT_TRUE(IsChatter("event=listening grpc=127.0.0.1:4711 http=off"));
  EXPECT_FALSE(IsChatter(time + "level=warning event=disk message=\"level=info \""));
  EXPECT_FALSE(IsChatter(time + "level=error event=x"));
  EXPECT_FALSE(IsChatter("ssh: connect to host b port 22: Connection refused"));
  EXPECT_FALSE(IsChatter(time));
  EXPECT_FALSE(IsChatter(""));
}

TEST(LogTextTest, RankAndHostStandInFront) {
  job::v1::LogLine line;
  line.set_role(common::v1::ROLE_WORKER);
  line.set_index(3);
  line.set_host("node-a");
  line.set_level("warning");
  line.set_text("disk\033 slow");
  EXPECT_EQ(LogText(line, {}), "[w3 node-a] warning: disk? slow");
  line.set_role(common::v1::ROLE_PARAM_STORE);
  line.set_level("info");
  line.mutable_time()->set_seconds(1767323045);
  EXPECT_EQ(LogText(line, {.timestamps = true}), "2026-01-02T03:04:05.000Z [s3 node-a] disk? slow");
}

TEST(TextTableTest, LinesAreCutToATerminalAndWholeInAPipe) {
  TextTable table({"JOB", "STATE"});
  table.Add({"lenet-x3n9", "RUNNING"});
  table.Add({"a\nb", ""});
  EXPECT_EQ(table.Text(0), "JOB         STATE\nlenet-x3n9  RUNNING\na?b         -\n");
  EXPECT_EQ(table.Text(14), "JOB         ST\nlenet-x3n9  RU\na?b         -\n");
}

TEST(DescribeTextTest, SaysHowManyLostWorkersAreNotListed) {
  job::v1::Job job;
  job.add_workers()->set_node("w0");
  EXPECT_THAT(DescribeText(job, {.width = 0}), Not(HasSubstr("lost before")));
  job.set_workers_left_out(9);
  EXPECT_THAT(DescribeText(job, {.width = 0}),
              HasSubstr("\n(and 9 that were lost before these)\n"));
}

TEST(DescribeTextTest, SaysWhichKindOfDevicesItHas) {
  job::v1::Job job;
  EXPECT_THAT(DescribeText(job, {.width = 0}), Not(HasSubstr("Devices ")));
  job.set_device("cpu");
  EXPECT_THAT(DescribeText(job, {.width = 0}), HasSubstr("Devices     CPUs\n"));
  job.set_device("gpu");
  EXPECT_THAT(DescribeText(job, {.width = 0}), HasSubstr("Devices     GPUs\n"));
}

TEST(DescribeTextTest, SaysWhichWayFilesGo) {
  job::v1::Job job;
  EXPECT_THAT(DescribeText(job, {.width = 0}), Not(HasSubstr("Files ")));
  job::v1::Member& shard = *job.add_shards();
  shard.set_files_way(job::v1::FILES_WAY_SHARED);
  EXPECT_THAT(DescribeText(job, {.width = 0}), HasSubstr("Files       shared folder\n"));
  job::v1::Member& worker = *job.add_workers();
  worker.set_index(1);
  worker.set_files_way(job::v1::FILES_WAY_GRPC);
  EXPECT_THAT(
      DescribeText(job, {.width = 0}),
      HasSubstr("Files       over gRPC to the coordinator's host by worker 1; shared folder "
                "for the others\n"));
}

TEST(DescribeTextTest, EndsWithTheRootCause) {
  job::v1::Job job = RunningJob();
  job.clear_resolved();
  job.set_state(common::v1::JOB_STATE_FAILED);
  job.set_reason("DataMissing");
  job.set_message("worker w1 on host b: /data/x is not there");
  EXPECT_THAT(DescribeText(job, {.width = 0}),
              EndsWith("State       FAILED  DataMissing\n"
                       "Root cause  worker w1 on host b: /data/x is not there\n"));
}

// Expected values by hand from docs/interface.md: one worker, one device, all lanes, the same
// batch.
TEST(ReferenceSpecTest, KeepsLanesAndBatchAndDropsTheRest) {
  job::v1::Job job;
  EXPECT_EQ(ReferenceSpec(job).status().code(), absl::StatusCode::kFailedPrecondition);
  auto& resolved = *job.mutable_resolved();
  resolved.set_lanes(8);
  resolved.set_global_batch(256);
  auto& spec = *resolved.mutable_spec();
  spec.mutable_resources()->set_num_workers(4);
  spec.mutable_resources()->set_gpus_per_worker(2);
  spec.mutable_training()->set_batch_size_per_gpu(32);
  spec.mutable_checkpoint()->set_storage_path("file:///elsewhere");
  const auto reference = ReferenceSpec(job);
  ASSERT_TRUE(reference.ok());
  EXPECT_EQ(reference->resources().num_workers(), 1);
  EXPECT_EQ(reference->resources().device(), "");  // no `device`: an older coordinator
  resolved.mutable_spec()->mutable_resources()->set_device("auto");
  EXPECT_EQ(ReferenceSpec(job)->resources().device(), "cpu");
  job.set_device("gpu");  // what `auto` became: other devices give other bits
  EXPECT_EQ(ReferenceSpec(job)->resources().device(), "gpu");
  EXPECT_EQ(reference->resources().gpus_per_worker(), 1);
  EXPECT_EQ(reference->resources().lanes(), 8);
  EXPECT_EQ(reference->training().global_batch_size(), 256);
  resolved.mutable_spec()->mutable_training()->set_accumulate_steps(4);  // 2 lanes of 64 samples
  EXPECT_EQ(ReferenceSpec(job)->resources().lanes(), 2);
  EXPECT_EQ(ReferenceSpec(job)->training().global_batch_size(), 64);
  EXPECT_EQ(ReferenceSpec(job)->training().accumulate_steps(), 4);
  resolved.mutable_spec()->mutable_training()->set_accumulate_steps(0);  // of a damaged answer
  EXPECT_EQ(ReferenceSpec(job)->resources().lanes(), 8);
  EXPECT_EQ(reference->kvstore().type(), "local");
  EXPECT_FALSE(reference->checkpoint().has_storage_path());
  auto& event = *job.add_events();
  event.set_type("OrderApplied");
  event.set_message("order 1: checkpoint, from step 6");
  EXPECT_TRUE(ReferenceSpec(job).ok());
  event.set_message("order 2: learning rate 0.1, from step 8");
  EXPECT_EQ(ReferenceSpec(job).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ReferenceSpecTest, AnAsynchronousJobHasOneOnlyWithOneLane) {
  job::v1::Job job;
  auto& resolved = *job.mutable_resolved();
  resolved.set_lanes(1);
  resolved.set_global_batch(64);
  resolved.mutable_spec()->mutable_kvstore()->set_type("dist_device_async");
  resolved.mutable_spec()->mutable_kvstore()->set_max_staleness(3);
  ASSERT_TRUE(ReferenceSpec(job).ok());
  EXPECT_EQ(ReferenceSpec(job)->kvstore().type(), "local");
  EXPECT_FALSE(ReferenceSpec(job)->kvstore().has_max_staleness());
  resolved.set_lanes(2);
  EXPECT_THAT(std::string(ReferenceSpec(job).status().message()),
              HasSubstr("was asynchronous (dist_device_async) with 2 lanes"));
}

TEST(ReferenceSpecTest, ACompressedJobHasOneUnlessWhatWasLeftOutWasLost) {
  job::v1::Job job;
  job.set_lineage(1);
  auto& resolved = *job.mutable_resolved();
  resolved.set_lanes(2);
  resolved.set_global_batch(64);
  auto& kvstore = *resolved.mutable_spec()->mutable_kvstore();
  kvstore.set_type("dist_sync");
  auto& compression = *kvstore.mutable_gradient_compression();
  compression.set_type("2bit");
  compression.set_threshold(0.25);
  ASSERT_TRUE(ReferenceSpec(job).ok());
  EXPECT_EQ(ReferenceSpec(job)->kvstore().gradient_compression().threshold(), 0.25);
  EXPECT_EQ(ReferenceSpec(job)->recovery().residuals(), "drop");  // an earlier version's job
  resolved.mutable_spec()->mutable_recovery()->set_residuals("rollback");
  job.set_lineage(5);
  job.set_generation(7);
  EXPECT_EQ(ReferenceSpec(job)->recovery().residuals(), "rollback");
  resolved.mutable_spec()->mutable_recovery()->set_residuals("drop");
  job.set_generation(0);
  job.set_lineage(2);
  EXPECT_THAT(std::string(ReferenceSpec(job).status().message()),
              HasSubstr("compresses gradients (2bit), and what they had left out was lost when the "
                        "job went back to a checkpoint"));
  compression.set_type("int8");
  EXPECT_TRUE(ReferenceSpec(job).ok());
  EXPECT_FALSE(ReferenceSpec(job)->recovery().has_residuals());
  job.set_lineage(1);
  compression.set_type("top_k");
  job.set_generation(1);
  EXPECT_TRUE(ReferenceSpec(job).ok());
  job.set_generation(2);
  EXPECT_THAT(std::string(ReferenceSpec(job).status().message()),
              HasSubstr("was lost when its tasks changed"));
}

// Flags come first, then variables, then one file. Address, authority and credentials come from one
// place. The fixture has a home with files of its own, and a working directory beside it.
class CoordinatorAddressTest : public ::testing::Test {
 protected:
  CoordinatorAddressTest() {
    std::filesystem::create_directories(folder_ + "/here/papers");
    places_.working = folder_ + "/here/capstan.yaml";
    places_.contexts = folder_ + "/contexts.yaml";
    places_.files = {folder_ + "/absent.yaml", folder_ + "/home.yaml", folder_ + "/etc.yaml"};
  }
  ~CoordinatorAddressTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& path, const std::string& text, mode_t mode = 0600) {
    std::filesystem::remove(path);
    ASSERT_TRUE(services::WriteFileAtomically(path, text, {.mode = mode, .sync = false}).ok());
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
  }
  absl::StatusOr<Connection> Find(const ConnectFlags& flags = {}) const {
    return FindCoordinator(flags, places_, [this](const std::string& name) {
      const auto it = variables_.find(name);
      return it == variables_.end() ? std::nullopt : std::optional<std::string>(it->second);
    });
  }
  std::string Why(const ConnectFlags& flags = {}) const {
    return std::string(Find(flags).status().message());
  }
  // The note about `text` as the working directory's file; "" if the file applies.
  std::string PassedOver(const std::string& text, mode_t mode = 0600) {
    Write(places_.working, text, mode);
    const auto found = Find();
    if (!found.ok()) return std::string(found.status().message());
    EXPECT_LE(found->notes.size(), 1u);
    const std::string note = found->notes.empty() ? "" : found->notes[0];
    if (note.empty()) {
      EXPECT_EQ(found->address.ToString(), "there:1");
    } else {
      ExpectHome(*found);
    }
    return note;
  }
  void ExpectHome(const Connection& found) const {
    EXPECT_EQ(found.address.ToString(), "home:1");
    EXPECT_EQ(found.security.tls_ca, folder_ + "/ca");
    EXPECT_EQ(found.security.token_file, folder_ + "/token");
  }

  const std::string folder_ = *services::MakePrivateDir("capstan-config");
  const std::string home_ =
      "address: home:1\ntls_ca: ca\ntls_cert: cert\ntls_key: key\ntoken_file: token\n";
  const std::string whole_ =
      "address: there:1\ntls_ca: papers/ca\ntls_cert: papers/cert\n"
      "tls_key: papers/key\ntoken_file: papers/token\n";
  ConfigPlaces places_;
  std::map<std::string, std::string> variables_;
};

TEST_F(CoordinatorAddressTest, FlagsThenVariablesThenOneFile) {
  EXPECT_EQ(Find()->address.ToString(), "127.0.0.1:7070");
  Write(folder_ + "/etc.yaml", "address: etc:2\ninsecure: true\n");
  EXPECT_EQ(Find()->address.ToString(), "etc:2");
  EXPECT_TRUE(Find()->security.insecure);
  Write(folder_ + "/home.yaml", "timeout: 5s\n");
  EXPECT_EQ(Find()->address.ToString(), "etc:2");
  EXPECT_EQ(Find()->timeout, absl::Seconds(5));
  variables_["CAPSTAN_ADDRESS"] = "unix:/run/c.sock";
  EXPECT_EQ(Find()->address.ToString(), "unix:/run/c.sock");
  ConnectFlags flags;
  flags.address = "flag:3";
  EXPECT_EQ(Find(flags)->address.ToString(), "flag:3");
  flags.timeout = "soon";
  EXPECT_THAT(Why(flags), HasSubstr("--timeout: got 'soon'"));
  Write(folder_ + "/home.yaml", "addres: x:1\n");
  EXPECT_THAT(Why(), HasSubstr("home.yaml:1: unknown key 'addres' (did you mean 'address'?)"));
}

TEST_F(CoordinatorAddressTest, WhatNobodyNamedIsNotConfigured) {
  variables_["CAPSTAN_TIMEOUT"] = "5s";
  EXPECT_FALSE(Find()->configured);
  ConnectFlags flags;
  flags.insecure = true;
  EXPECT_TRUE(Find(flags)->configured);
  variables_["CAPSTAN_ADDRESS"] = "unix:/run/c.sock";
  EXPECT_TRUE(Find()->configured);
  variables_.clear();
  Write(folder_ + "/home.yaml", home_);
  EXPECT_TRUE(Find()->configured);
}

TEST_F(CoordinatorAddressTest, TwoFilesAreNeverPutTogether) {
  Write(folder_ + "/home.yaml", "address: home:1\n");
  Write(folder_ + "/etc.yaml", "address: etc:2\ninsecure: true\ntoken_file: token\n");
  const auto found = Find();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->address.ToString(), "home:1");
  EXPECT_FALSE(found->security.insecure);
  EXPECT_EQ(found->security.token_file, "");
  Write(folder_ + "/home.yaml", "token_file: token\n");
  EXPECT_THAT(Why(), HasSubstr("home.yaml: has no address; address, authority and credentials are "
                               "one context, in one file"));
  variables_["CAPSTAN_ADDRESS"] = "mine:3";
  EXPECT_EQ(Find()->security.token_file, folder_ + "/token");
}

TEST_F(CoordinatorAddressTest, PlaintextThatIsAskedForDropsTheFilesPapersAndTheOtherWayRound) {
  Write(folder_ + "/home.yaml", home_);
  ConnectFlags flags;
  flags.insecure = true;
  EXPECT_EQ(Find(flags)->security.tls_ca, "");
  EXPECT_EQ(Find(flags)->security.token_file, "");
  variables_["CAPSTAN_INSECURE"] = "0";
  ExpectHome(*Find());
  variables_.clear();
  Write(folder_ + "/home.yaml", "address: home:1\ninsecure: true\n");
  variables_["CAPSTAN_TLS_CA"] = "/ca";
  EXPECT_FALSE(Find()->security.insecure);
}

TEST_F(CoordinatorAddressTest, TheWorkingDirectorysFileCountsOnlyWholeAndOnesOwn) {
  Write(folder_ + "/home.yaml", home_);
  EXPECT_EQ(PassedOver(whole_), "");
  EXPECT_EQ(Find()->security.token_file, folder_ + "/here/papers/token");
  EXPECT_EQ(PassedOver("address: there:1\ninsecure: true\n"), "");
  EXPECT_EQ(Find()->security.token_file, "");

  // A file that would send the user's token to a foreign address.
  EXPECT_THAT(PassedOver("address: there:1\n"), HasSubstr("it has no tls_ca, tls_cert"));
  EXPECT_THAT(PassedOver("address: there:1\ntls_ca: papers/ca\n"), HasSubstr("it has no tls_cert"));
  EXPECT_THAT(PassedOver("tls_ca: papers/ca\n"), HasSubstr("it has no address"));
  const auto with_token = [&](const std::string& token) {
    return absl::StrReplaceAll(whole_, {{"papers/token", token}});
  };
  EXPECT_THAT(PassedOver(with_token(folder_ + "/token")),
              HasSubstr("token_file names a file outside its folder"));
  EXPECT_THAT(PassedOver(with_token("../token")), HasSubstr("names a file outside its folder"));
  EXPECT_THAT(PassedOver(with_token("papers/../../token")),
              HasSubstr("names a file outside its folder"));
  std::filesystem::create_symlink(folder_ + "/token", folder_ + "/here/papers/link");
  Write(folder_ + "/token", "t");
  EXPECT_THAT(PassedOver(with_token("papers/link")), HasSubstr("names a file outside its folder"));

  EXPECT_THAT(PassedOver(whole_, 0620), HasSubstr("others may write it"));
  Write(folder_ + "/elsewhere.yaml", whole_);
  std::filesystem::remove(places_.working);
  std::filesystem::create_symlink(folder_ + "/elsewhere.yaml", places_.working);
  EXPECT_THAT(Find()->notes, ElementsAre(HasSubstr("it is a symbolic link")));
  ExpectHome(*Find());
  if (geteuid() == 0) {  // only root can give a file away
    Write(places_.working, whole_);
    ASSERT_EQ(chown(places_.working.c_str(), 12345, static_cast<gid_t>(-1)), 0);
    EXPECT_THAT(Find()->notes, ElementsAre(HasSubstr("it belongs to user 12345, not to you")));
    ExpectHome(*Find());
  }

  // No value of the user's own is combined with the file's.
  Write(places_.working, whole_);
  variables_["CAPSTAN_TOKEN_FILE"] = folder_ + "/token";
  EXPECT_THAT(Find()->notes, ElementsAre(HasSubstr("flags or variables set a part")));
  ExpectHome(*Find());
  variables_ = {{"CAPSTAN_ADDRESS", "mine:1"}};
  EXPECT_EQ(Find()->address.ToString(), "mine:1");
  EXPECT_EQ(Find()->security.token_file, folder_ + "/token");
  EXPECT_TRUE(Find()->notes.empty());
}

TEST_F(CoordinatorAddressTest, AContextIsWholeAndItsFileTheUsersAlone) {
  const auto add = [](const std::string& name, const std::string& address) {
    return [=](Contexts& contexts) {
      contexts.all[name] = {{"address", {address, ""}}, {"token_file", {"/t: #x", ""}}};
      contexts.current = name;
      return absl::OkStatus();
    };
  };
  Write(folder_ + "/home.yaml", home_);
  places_.contexts = folder_ + "/new/contexts.yaml";
  ASSERT_TRUE(ChangeContexts(places_.contexts, add("a", "a:1")).ok());
  ASSERT_TRUE(ChangeContexts(places_.contexts, add("b", "b:2")).ok());
  struct stat info;
  ASSERT_EQ(stat(places_.contexts.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(ReadContexts(places_.contexts)->all.size(), 2u);

  EXPECT_EQ(Find()->address.ToString(), "b:2");
  EXPECT_EQ(Find()->security.token_file, "/t: #x");
  EXPECT_EQ(Find()->security.tls_ca, "");  // the one in home.yaml belongs to another context
  variables_["CAPSTAN_CONTEXT"] = "a";
  EXPECT_EQ(Find()->address.ToString(), "a:1");
  Write(places_.working, whole_);
  EXPECT_EQ(Find()->address.ToString(), "a:1");  // the context was asked for by name
  variables_.clear();
  EXPECT_EQ(Find()->address.ToString(), "there:1");
  ConnectFlags flags;
  flags.context = "c";
  EXPECT_EQ(Why(flags), "--context: no context 'c'; there are: a, b");

  // An error leaves the file unchanged.
  EXPECT_FALSE(ChangeContexts(places_.contexts, [](Contexts& contexts) {
                 contexts.all.clear();
                 return absl::InternalError("no");
               }).ok());
  EXPECT_EQ(ReadContexts(places_.contexts)->current, "b");
  std::filesystem::remove(places_.working);
  ASSERT_EQ(chmod(places_.contexts.c_str(), 0644), 0);
  EXPECT_THAT(Why(), HasSubstr("mode 0644"));
  for (const auto& [text, why] :
       {std::pair("current: x\n", "the current context 'x' does not exist"),
        std::pair("contexts:\n  a:\n    timeout: 1s\n",
                  "contexts.yaml:2: context a has no address"),
        std::pair("contexts:\n  a:\n    adress: b\n", "did you mean 'address'"),
        std::pair("contexts:\n  '../a':\n    address: b:1\n", "not a name of a context"),
        std::pair("context: 1\n", "want 'current' and 'contexts'"),
        std::pair("[", "contexts.yaml:1")}) {
    Write(places_.contexts, text);
    EXPECT_THAT(Why(), HasSubstr(why)) << text;
  }
}

TEST(ExitCodesTest, AreThoseOfTheInterface) {
  EXPECT_EQ(ExitCodeOf(common::v1::JOB_STATE_SUCCEEDED), 0);
  EXPECT_EQ(ExitCodeOf(common::v1::JOB_STATE_FAILED), 100);
  EXPECT_EQ(ExitCodeOf(common::v1::JOB_STATE_RUNNING), 101);
  EXPECT_EQ(ExitCodeOf(common::v1::JOB_STATE_CANCELLED), 103);
  // 102 is only for jobs, and ReportJob returns it.
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("no node w7")), 2);
  EXPECT_EQ(kExitNotFound, 102);
  EXPECT_EQ(kExitDifferent, 6);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("")), 3);
  EXPECT_EQ(ExitCodeOf(absl::ResourceExhaustedError("")), 4);
  EXPECT_EQ(ExitCodeOf(absl::InvalidArgumentError("")), 2);
}

TEST(ExitCodesTest, AComparisonHasAnOwnOne) {
  job::v1::Job job = RunningJob();
  job.set_weights_sha256("ab");
  job.set_samples_used(4000);
  job::v1::Job other = job;
  EXPECT_EQ(ExitCodeOfComparison(job, other), 0);
  other.set_samples_used(3999);
  EXPECT_EQ(ExitCodeOfComparison(job, other), 6);
  other = job;
  other.set_weights_sha256("cd");
  EXPECT_EQ(ExitCodeOfComparison(job, other), 6);
}

TEST(CheckpointNameTest, AJobAndPerhapsItsStep) {
  EXPECT_EQ(ParseCheckpointName("lenet-x3n9")->which, "");
  EXPECT_EQ(ParseCheckpointName("lenet-x3n9@40")->job_id, "lenet-x3n9");
  EXPECT_EQ(ParseCheckpointName("lenet-x3n9@40")->which, "40");
  EXPECT_EQ(ParseCheckpointName("lenet-x3n9@2-40")->which, "2-40");
  EXPECT_EQ(ParseCheckpointName("@last")->job_id, "@last");
  EXPECT_EQ(ParseCheckpointName("@last@40")->job_id, "@last");
  EXPECT_EQ(ParseCheckpointName("@last@40")->which, "40");
  EXPECT_EQ(ParseCheckpointName("j@best")->which, "best");
  for (const char* text : {"", "@", "@lasting", "@40", "j@", "j@x", "j@bests", "j@4x", "j@1-",
                           "j@-4", "j@1-2-3", "j@1@2"}) {
    EXPECT_EQ(ParseCheckpointName(text).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
  EXPECT_TRUE(IsCheckpointName("lenet-x3n9@40"));
  for (const char* path : {"lenet-x3n9", "./j@40", "/out/j@40", "file:///j@40", "w.safetensors"}) {
    EXPECT_FALSE(IsCheckpointName(path)) << path;
  }
}

TEST(JobNameTest, AnIdOrTheBeginningOfOneAlone) {
  const std::vector<std::string> ids = {"toy-b2c3-x9x9", "lenet-x3n9", "toy-b2c3", "lenet-x4a1"};
  const auto match = [&](const char* name) {
    const auto id = MatchJob(name, ids);
    return id.ok() ? *id : id.status().ToString();
  };
  EXPECT_EQ(match("lenet-x3n9"), "lenet-x3n9");
  EXPECT_EQ(match("lenet-x3"), "lenet-x3n9");
  EXPECT_EQ(match("toy-b2c3"), "toy-b2c3");  // although another id begins with it
  EXPECT_EQ(match("lenet"),
            "INVALID_ARGUMENT: several jobs begin with 'lenet': lenet-x3n9, lenet-x4a1");
  EXPECT_EQ(match("enet"), "NOT_FOUND: no job enet");
  EXPECT_EQ(match(""), "NOT_FOUND: no job ");
  const std::vector<std::string> many(12, "lenet-x3n9");
  EXPECT_THAT(std::string(MatchJob("l", many).status().message()), EndsWith(" and 2 more"));
}

TEST(CheckpointNameTest, TheNewestThatIsMeantOrAllThatAreThere) {
  job::v1::ListCheckpointsResponse list;
  for (const char* id : {"2-60", "2-40", "1-40"}) {
    job::v1::SavedCheckpoint& saved = *list.add_checkpoints();
    saved.set_id(id);
    saved.set_step(std::atoi(id + 2));
  }
  const auto find = [&](const char* which) {
    const auto found = FindCheckpoint({"j", which}, list.checkpoints());
    return found.ok() ? (*found)->id() : std::string(found.status().message());
  };
  EXPECT_EQ(find(""), "2-60");
  EXPECT_EQ(find("40"), "2-40");
  EXPECT_EQ(find("1-40"), "1-40");
  EXPECT_EQ(find("50"), "j has no checkpoint of step 50; it has those of steps 60, 40, 40");
  EXPECT_EQ(find("3-40"), "j has no checkpoint 3-40; it has 2-60, 2-40, 1-40");
  EXPECT_THAT(find("best"), HasSubstr("j has no best checkpoint: 'checkpoint.keep_best'"));
  for (const auto& [index, metric] : std::vector<std::pair<int, double>>{{0, 0.7}, {1, 0.9}}) {
    list.mutable_checkpoints(index)->set_best(true);
    list.mutable_checkpoints(index)->set_metric(metric);
  }
  list.mutable_checkpoints(2)->set_metric(0.95);  // not kept by keep_best
  EXPECT_EQ(find("best"), "2-40");
  for (auto& saved : *list.mutable_checkpoints()) saved.set_smaller_is_better(true);
  EXPECT_EQ(find("best"), "2-60");
  list.clear_checkpoints();
  EXPECT_EQ(find(""), "j has no checkpoint");
}

TEST(JobClientTest, ASocketThatIsNotThereIsSaidLongBeforeTheTimeout) {
  const std::string folder = *services::MakePrivateDir("capstan-client");
  Connection connection;
  connection.address = *services::ParseEndpoint(absl::StrCat("unix:", folder, "/c.sock"));
  connection.timeout = absl::Seconds(30);
  const auto client = JobClient::Connect(connection);
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::Duration begun = MonotonicNow();
  const absl::Status status = (*client)->AwaitConnection(connection);
  EXPECT_LT(MonotonicNow() - begun, absl::Seconds(10));
  EXPECT_EQ(ExitCodeOf(status), kExitUnreachable);
  EXPECT_EQ(status.message(),
            absl::StrCat("no coordinator answers at unix:", folder,
                         "/c.sock: there is no such socket (--address, CAPSTAN_ADDRESS)"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace capstan::client
