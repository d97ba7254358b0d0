#include "client/bench/step_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"

namespace capstan::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 100 GFLOP/s and 10 GB/s: a kernel is bound by computing above 10 operations per byte.
StepReport ByHand() {
  StepReport report;
  report.model = "net";
  report.input = {3, 32, 32};
  report.num_classes = 10;
  report.batch = 64;
  report.threads = 2;
  report.optimizer = "adam";
  report.limits = {"AMD EPYC 7B13", "avx2", 100e9, 10e9};
  report.rows = {
      {"load weights", "copies", 0.001, 0, 0, 2e6},
      {"conv1 to pool1", "direct, with pooling", 0.010, 0.020, 2.4e9, 30e6},
      {"bn1", "norm", 0.004, 0.003, 0, 80e6},
      {"update", "adam", 0, 0.002, 0, 10e6},
  };
  report.steps = 7;
  report.step_seconds = 0.0405;
  report.step_p10_seconds = 0.039;
  report.step_p90_seconds = 0.0501;
  return report;
}

TEST(StepReportTest, TheLargerTermIsTheBound) {
  const engine::DeviceLimits limits = {"", "", 100e9, 10e9};
  const auto bound = [&](double flops, double bytes) {
    StepRow row;
    row.flops = flops;
    row.bytes = bytes;
    return LimitOf(row, limits);
  };
  EXPECT_EQ(bound(11e9, 1e9).bound(), "compute");
  EXPECT_DOUBLE_EQ(bound(11e9, 1e9).seconds(), 0.11);
  EXPECT_EQ(bound(9e9, 1e9).bound(), "memory");
  EXPECT_DOUBLE_EQ(bound(9e9, 1e9).seconds(), 0.1);
  EXPECT_EQ(bound(10e9, 1e9).bound(), "memory");  // both
  EXPECT_EQ(bound(0, 1).bound(), "memory");
  EXPECT_EQ(bound(1, 0).bound(), "compute");
}

TEST(StepReportTest, TotalsAreSumsOfTheRows) {
  const StepTotal total = TotalOf(ByHand());
  EXPECT_DOUBLE_EQ(total.forward_seconds, 0.015);
  EXPECT_DOUBLE_EQ(total.backward_seconds, 0.025);
  EXPECT_DOUBLE_EQ(total.seconds(), 0.040);
  EXPECT_DOUBLE_EQ(total.flops, 2.4e9);
  EXPECT_DOUBLE_EQ(total.bytes, 122e6);
  // 0.2 ms, 24 ms by computing, 8 ms, 1 ms.
  EXPECT_DOUBLE_EQ(total.limit_seconds, 0.0332);
}

TEST(StepReportTest, Text) {
  EXPECT_EQ(
      StepText(ByHand(), /*wide=*/false, /*width=*/0),
      "net on images of 3x32x32, 10 classes: a step of 64 samples, 2 threads, adam\n"
      "\n"
      "LAYER                   FORWARD  BACKWARD  SHARE   GFLOP  MB      GFLOP/s  BOUND    "
      "ROOF\n"
      "load weights            1.00     -         2.5%    -      2.00    -        memory   20%\n"
      "conv1 to pool1          10.00    20.00     75.0%   2.40   30.00   80.0     compute  80%\n"
      "bn1                     4.00     3.00      17.5%   -      80.00   -        memory   114%\n"
      "update                  -        2.00      5.0%    -      10.00   -        memory   50%\n"
      "step, 1580.2 samples/s  15.00    25.00     100.0%  2.40   122.00  60.0     -        83%\n"
      "\n"
      "times in ms, medians of 7 steps; a whole step took 40.50 ms (p10 to p90: 39.00 to 50.10)\n"
      "limits of AMD EPYC 7B13, avx2, 2 threads:\n"
      "100.0 GFLOP/s of multiply-adds in registers, 10.0 GB/s read and written in memory\n");
}

TEST(StepReportTest, WideTextSaysHowKernelsCompute) {
  StepReport report = ByHand();
  report.threads = 1;
  report.limits.processor = "";
  const std::string text = StepText(report, /*wide=*/true, /*width=*/0);
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  ASSERT_GT(lines.size(), 5u);
  EXPECT_THAT(lines[2], HasSubstr("ROOF  KERNEL"));
  EXPECT_THAT(lines[4], HasSubstr("80%   direct, with pooling"));
  EXPECT_THAT(text, HasSubstr("64 samples, 1 thread, adam"));
  EXPECT_THAT(text, HasSubstr("limits of this processor, avx2, 1 thread:"));
  const std::string cut = StepText(report, /*wide=*/true, /*width=*/20);
  EXPECT_THAT(cut, HasSubstr("\nconv1 to pool1      \n"));
}

TEST(StepReportTest, TextNamesTheBlockOfARunOnce) {
  const auto name_of = [](const std::string& name) {
    StepReport report = ByHand();
    report.rows = {{name, "norm", 0.0007, 0.9994, 0, 1}};
    EXPECT_EQ(StepJson(report)["rows"][0]["name"], name);
    const std::vector<std::string> lines =
        absl::StrSplit(StepText(report, /*wide=*/false, /*width=*/0), '\n');
    EXPECT_THAT(lines[3], HasSubstr("  0.700    999.40  "));
    return lines[3].substr(0, lines[3].find("  "));
  };
  EXPECT_EQ(name_of("layer1.0.bn1 to layer1.0.relu1"), "layer1.0.bn1 to relu1");
  EXPECT_EQ(name_of("l2.0.down.1 to l2.0.relu2"), "l2.0.down.1 to relu2");
  EXPECT_EQ(name_of("fc1 to fc1_relu"), "fc1 to fc1_relu");
  EXPECT_EQ(name_of("a.b.c to a.x.c"), "a.b.c to x.c");
  EXPECT_EQ(name_of("conv1"), "conv1");
}

TEST(StepReportTest, OneOutputIsNoPlural) {
  StepReport report = ByHand();
  report.num_classes = 1;
  report.numeric_targets = true;
  EXPECT_THAT(StepText(report, /*wide=*/false, /*width=*/0), testing::HasSubstr(", 1 output: "));
  report.num_classes = 2;
  EXPECT_THAT(StepText(report, /*wide=*/false, /*width=*/0), testing::HasSubstr(", 2 outputs: "));
}

TEST(StepReportTest, Json) {
  const nlohmann::ordered_json json = StepJson(ByHand());
  EXPECT_EQ(json["model"], "net");
  EXPECT_EQ(json["input"], nlohmann::ordered_json({3, 32, 32}));
  EXPECT_EQ(json["num_classes"], 10);
  EXPECT_EQ(json["batch"], 64);
  EXPECT_EQ(json["threads"], 2);
  EXPECT_EQ(json["optimizer"], "adam");
  EXPECT_EQ(json["processor"], "AMD EPYC 7B13");
  EXPECT_EQ(json["instruction_set"], "avx2");
  EXPECT_EQ(json["peak_flops_per_second"], 100e9);
  EXPECT_EQ(json["memory_bytes_per_second"], 10e9);
  EXPECT_EQ(json["steps"], 7);
  EXPECT_EQ(json["step_seconds"], 0.0405);
  EXPECT_EQ(json["step_p10_seconds"], 0.039);
  EXPECT_EQ(json["step_p90_seconds"], 0.0501);
  EXPECT_DOUBLE_EQ(json["samples_per_second"], 64 / 0.0405);
  ASSERT_EQ(json["rows"].size(), 4u);
  const nlohmann::ordered_json& row = json["rows"][1];
  std::vector<std::string> keys;
  for (const auto& [key, value] : row.items()) keys.push_back(key);
  EXPECT_THAT(keys,
              ElementsAre("name", "kernel", "forward_seconds", "backward_seconds", "share", "flops",
                          "bytes", "flops_per_second", "bound", "limit_seconds", "reached"));
  EXPECT_EQ(row["name"], "conv1 to pool1");
  EXPECT_EQ(row["kernel"], "direct, with pooling");
  EXPECT_DOUBLE_EQ(row["share"], 0.75);
  EXPECT_DOUBLE_EQ(row["flops_per_second"], 80e9);
  EXPECT_EQ(row["bound"], "compute");
  EXPECT_DOUBLE_EQ(row["limit_seconds"], 0.024);
  EXPECT_DOUBLE_EQ(row["reached"], 0.8);
  EXPECT_EQ(json["rows"][2]["bound"], "memory");
  EXPECT_DOUBLE_EQ(json["total"]["reached"], 0.83);
  EXPECT_DOUBLE_EQ(json["total"]["forward_seconds"], 0.015);
}

TEST(StepReportTest, NothingMeasuredIsNoDivisionByZero) {
  StepReport report;
  report.rows.push_back({"a", "b"});
  EXPECT_THAT(StepText(report, /*wide=*/false, 0), HasSubstr("step, 0.0 samples/s"));
  EXPECT_EQ(StepJson(report)["rows"][0]["reached"], 0.0);
  EXPECT_EQ(StepJson(report)["samples_per_second"], 0.0);
}

}  // namespace
}  // namespace capstan::client
