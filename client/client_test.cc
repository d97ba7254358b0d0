#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "client/coordinator_address.h"
#include "client/describe_text.h"
#include "client/exit_codes.h"
#include "client/job_json.h"
#include "client/job_view.h"
#include "client/log_text.h"
#include "client/old_runs.h"
#include "client/reference_spec.h"
#include "client/text_table.h"
#include "services/proto_json/proto_json.h"

namespace capstan::client {
namespace {

using services::ProtoJson;

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

// By hand from docs/interface.md: one worker with one device, all lanes, the same batch.
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
  EXPECT_EQ(reference->resources().gpus_per_worker(), 1);
  EXPECT_EQ(reference->resources().lanes(), 8);
  EXPECT_EQ(reference->training().global_batch_size(), 256);
  EXPECT_EQ(reference->kvstore().type(), "local");
  EXPECT_FALSE(reference->checkpoint().has_storage_path());
  auto& event = *job.add_events();
  event.set_type("OrderApplied");
  event.set_message("order 1: checkpoint, from step 6");
  EXPECT_TRUE(ReferenceSpec(job).ok());
  event.set_message("order 2: learning rate 0.1, from step 8");
  EXPECT_EQ(ReferenceSpec(job).status().code(), absl::StatusCode::kFailedPrecondition);
}

// Flags, then variables, then files in their order; each value by itself.
TEST(CoordinatorAddressTest, TheFirstThatHasAValueWins) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "capstan-config-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string near = folder + "/near.yaml";
  const std::string far = folder + "/far.yaml";
  std::ofstream(near) << "address: near:1\n";
  std::ofstream(far) << "address: far:2\ntimeout: 5s\ninsecure: true\ntoken_file: my.token\n";
  const std::vector<std::string> files = {folder + "/absent.yaml", near, far};
  std::map<std::string, std::string> variables;
  const auto variable = [&](const std::string& name) {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional<std::string>(it->second);
  };
  ConnectFlags flags;
  auto found = FindCoordinator(flags, files, variable);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->address.ToString(), "near:1");
  EXPECT_EQ(found->timeout, absl::Seconds(5));
  EXPECT_TRUE(found->security.insecure);
  EXPECT_EQ(found->security.token_file, folder + "/my.token");
  variables["CAPSTAN_ADDRESS"] = "unix:/run/c.sock";
  EXPECT_EQ(FindCoordinator(flags, files, variable)->address.ToString(), "unix:/run/c.sock");
  flags.address = "flag:3";
  EXPECT_EQ(FindCoordinator(flags, files, variable)->address.ToString(), "flag:3");
  EXPECT_EQ(
      FindCoordinator({}, {}, [](const std::string&) { return std::nullopt; })->address.ToString(),
      "127.0.0.1:7070");

  flags.timeout = "soon";
  EXPECT_THAT(std::string(FindCoordinator(flags, files, variable).status().message()),
              HasSubstr("--timeout: got 'soon'"));
  std::ofstream(near) << "addres: x:1\n";
  EXPECT_THAT(std::string(FindCoordinator({}, files, variable).status().message()),
              HasSubstr("near.yaml:1: unknown key 'addres' (did you mean 'address'?)"));
  fs::remove_all(folder);
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
