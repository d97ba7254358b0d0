// The texts of `metrics`, `top`, `shards` and `node`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "client/text/metrics_text.h"
#include "client/text/top_text.h"

namespace capstan::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<job::v1::MetricPoint> Points() {
  std::vector<job::v1::MetricPoint> points(2);
  points[0].set_step(2);
  points[0].set_lineage(1);
  points[0].set_loss(2.5);
  points[0].mutable_time()->set_seconds(1000);
  points[1].set_step(6);
  points[1].set_lineage(1);
  points[1].set_loss(0.5);
  points[1].set_samples_per_second(1234.5);
  points[1].mutable_time()->set_seconds(1001);
  points[1].mutable_breakdown()->set_steps(4);
  points[1].mutable_breakdown()->set_total(0.012);
  points[1].mutable_breakdown()->set_push(0.003);
  return points;
}

TEST(MetricsTextTest, ProgramsGetEveryFieldAndNullWhereNothingWasKnown) {
  const auto json = nlohmann::json::parse(MetricsJson("toy-1", {Points(), {}}));
  EXPECT_EQ(json["job_id"], "toy-1");
  ASSERT_EQ(json["points"].size(), 2u);
  EXPECT_EQ(json["points"][0]["step"], 2);
  EXPECT_EQ(json["points"][0]["loss"], 2.5);
  EXPECT_EQ(json["points"][0]["time"], "1970-01-01T00:16:40.000Z");
  EXPECT_TRUE(json["points"][0]["step_seconds"].is_null());
  EXPECT_TRUE(json["points"][1]["accuracy"].is_null());
  EXPECT_EQ(json["points"][1]["push_seconds"], 0.003);
  EXPECT_EQ(MetricsCsv({Points(), {}}, {"loss", "samples_per_second"}),
            "step,time,loss,samples_per_second\n"
            "2,1970-01-01T00:16:40.000Z,2.5,\n"
            "6,1970-01-01T00:16:41.000Z,0.5,1234.5\n");
  EXPECT_EQ(MetricsTable({Points(), {}}, {"loss", "step_seconds"}, 0),
            "AT STEP  TIME                      LOSS  STEP\n"
            "2        1970-01-01T00:16:40.000Z  2.5   -\n"
            "6        1970-01-01T00:16:41.000Z  0.5   12.00 ms\n");
}

TEST(MetricsTextTest, EvaluationsStandAtThePointThatIsNotBeforeThem) {
  job::v1::Job job;
  job.mutable_resolved()->set_steps_per_epoch(3);
  job.mutable_progress()->set_total_steps(8);
  for (int epoch = 1; epoch <= 3; ++epoch) {
    common::v1::EpochRecord& record = *job.add_epochs();
    record.set_epoch(epoch);
    if (epoch == 1) continue;  // there was no evaluation after it
    record.set_validation_loss(1.0 / epoch);
    record.set_validation_accuracy(0.1 * epoch);
  }
  const training::JobHistory history = HistoryOf(job, Points());  // at steps 2 and 6
  ASSERT_EQ(history.evaluations.size(), 2u);
  EXPECT_EQ(history.evaluations[0].step, 6);
  EXPECT_EQ(history.evaluations[1].step, 8);  // the last, which is shorter
  EXPECT_EQ(MetricsCsv(history, {"validation_loss", "validation_accuracy"}),
            "step,time,validation_loss,validation_accuracy\n"
            "2,1970-01-01T00:16:40.000Z,,\n"
            "6,1970-01-01T00:16:41.000Z,0.333333333,0.3\n");  // the newer of the two
  EXPECT_THAT(MetricsTable(history, {"loss", "validation_accuracy"}, 0),
              HasSubstr("AT STEP  TIME                      LOSS  VAL ACC\n"));
  const auto curve = training::CurveOf(history, "validation_accuracy");
  ASSERT_TRUE(curve.ok());
  ASSERT_EQ(curve->points.size(), 2u);  // one per evaluation
  EXPECT_EQ(curve->points[0].first, 6);
  EXPECT_DOUBLE_EQ(curve->points[0].second, 0.2);
  const auto json = nlohmann::json::parse(MetricsJson("toy-1", history));
  EXPECT_TRUE(json["points"][0]["validation_loss"].is_null());
  EXPECT_EQ(json["evaluations"][0]["epoch"], 2);
  EXPECT_EQ(json["evaluations"][0]["validation_loss"], 0.5);
  EXPECT_EQ(json["evaluations"][1]["step"], 8);
}

TEST(MetricsTextTest, ACurveIsDrawnFromItsFirstToItsLastStep) {
  EXPECT_THAT(std::string(training::CurveOf({Points(), {}}, "los").status().message()),
              HasSubstr("no metric 'los'; there are: loss, accuracy"));
  const training::Curve curve{"loss", {{0, 3}, {4, 1}, {8, 1}}};
  // By hand: 9 columns of one step, 3 rows of values 3, 2, 1.
  EXPECT_EQ(PlotText(curve, 9, 3, /*unicode=*/false),
            "loss  1\n"
            "3 |*\n"
            "  | **\n"
            "1 |   ******\n"
            "   step 0  8\n");
  // A Braille character has 2 x 4 dots. A flat curve is drawn in the middle.
  EXPECT_THAT(PlotText({"loss", {{0, 1}, {9, 1}}}, 8, 2, /*unicode=*/true), HasSubstr("⣀⣀⣀⣀⣀⣀⣀⣀"));
  EXPECT_EQ(PlotText({"loss", {}}, 9, 3, false), "loss: nothing was reported yet\n");
}

TEST(TopTextTest, NodesShardsAndJobsAreTablesAndUnknownIsADash) {
  job::v1::ListNodesResponse nodes;
  nodes.mutable_cluster()->set_version("0.3.0");
  nodes.mutable_cluster()->set_uptime_seconds(273600);
  nodes.mutable_cluster()->set_running_jobs(1);
  nodes.mutable_cluster()->set_slots(3);
  nodes.mutable_cluster()->set_busy_slots(1);
  job::v1::NodeInfo& gpus = *nodes.add_nodes();
  gpus.set_name("node-a");
  gpus.set_state("READY");
  gpus.set_busy_devices(1);
  for (const char* name : {"cuda:0", "cuda:1"}) gpus.add_devices(name);
  gpus.add_device_jobs("");
  gpus.add_device_jobs("toy-1");
  gpus.mutable_usage()->set_cpu_ratio(0.38);
  gpus.mutable_usage()->set_memory_used_bytes(int64_t{41} << 30);
  gpus.mutable_usage()->set_memory_total_bytes(int64_t{256} << 30);
  gpus.mutable_usage()->add_devices();
  common::v1::DeviceUsage& card = *gpus.mutable_usage()->add_devices();
  card.set_utilization_ratio(0.93);
  card.set_memory_used_bytes(int64_t{21} << 30);
  card.set_memory_total_bytes(int64_t{140} << 30);
  card.set_temperature_celsius(61);
  card.set_power_watts(512);
  job::v1::Job job;
  job.set_job_id("toy-1");
  job.set_state(common::v1::JOB_STATE_RUNNING);
  job::v1::Member& worker = *job.add_workers();
  worker.set_index(3);
  worker.set_node("node-a");
  worker.set_state("RUNNING");
  worker.add_devices(1);
  job::v1::Member& shard = *job.add_shards();
  shard.set_node("s0");
  shard.set_state("RUNNING");
  shard.set_step(1176);
  shard.mutable_route()->set_first_chunk(4);
  shard.mutable_route()->set_chunk_count(31);
  shard.mutable_load()->set_resident_bytes(64 << 20);
  shard.mutable_load()->set_pushes_per_second(17);
  shard.mutable_load()->set_push_p99_seconds(0.0098);

  const std::string text = TopText(nodes, {job}, {});
  EXPECT_THAT(text,
              HasSubstr("coordinator 0.3.0  up 76h00m  jobs: 1 running, 0 pending  slots 1/3\n"));
  EXPECT_THAT(text, HasSubstr("node-a  READY  1/2    38%  41.0/256.0 GiB  cuda:0  -     -"));
  EXPECT_THAT(text, HasSubstr("cuda:1  93%   21.0/140.0 GiB  61 C  512 W  toy-1 (3)\n"));
  EXPECT_THAT(text,
              HasSubstr("s0     toy-1  s0    RUNNING  1176     4-34    64.0 MiB  17      9.8 ms"));
  const std::string nodes_alone = TopText(nodes, {job}, {.shards = false, .jobs = false});
  EXPECT_THAT(nodes_alone, Not(HasSubstr("SHARD")));
  const auto json = nlohmann::json::parse(TopJson(nodes, {job}));
  EXPECT_EQ(json["nodes"][0]["usage"]["devices"][1]["power_watts"], 512);
  EXPECT_EQ(json["shards"][0]["route"]["chunk_count"], 31);
  EXPECT_EQ(json["jobs"][0]["job_id"], "toy-1");
  EXPECT_THAT(NodeText(gpus), HasSubstr("Devices    cuda:0  free\n           cuda:1  toy-1\n"));
}

TEST(TopTextTest, TheBalanceIsOfTheTrafficPerStep) {
  job::v1::Job job;
  job.set_job_id("toy-1");
  const auto add = [&job](int64_t bytes, int64_t steps) {
    job::v1::Member& shard = *job.add_shards();
    shard.set_index(job.shards_size() - 1);
    shard.mutable_load()->set_traffic_bytes(bytes);
    shard.mutable_load()->set_traffic_steps(steps);
  };
  add(30000, 100);
  EXPECT_THAT(ShardsText({job}, false, 0), Not(HasSubstr("balance")));  // of one
  add(20000, 200);                                                      // its report is newer
  const std::string text = ShardsText({job}, false, 0);
  EXPECT_THAT(text, HasSubstr("75.0%"));
  EXPECT_THAT(text,
              HasSubstr("toy-1: balance 1.500, the traffic of the busiest shard over the mean\n"));
  const auto json = nlohmann::json::parse(ShardsJson({job}));
  EXPECT_EQ(json[1]["traffic_share"], 0.25);
  EXPECT_EQ(json[1]["job_balance"], 1.5);
  add(100, 3);  // it has just begun
  EXPECT_THAT(ShardsText({job}, false, 0), Not(HasSubstr("balance")));
}

}  // namespace
}  // namespace capstan::client
