#include "client/bench/step_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/text/text_table.h"

namespace capstan::client {
namespace {

// 0 where nothing was measured.
double Ratio(double a, double b) { return b > 0 ? a / b : 0; }

std::string Number(double value) {
  return value > 0 ? absl::StrFormat("%.*f", value < 1 ? 3 : 2, value) : "";
}

// "layer1.0.bn1 to relu1" of "layer1.0.bn1 to layer1.0.relu1": nodes of one block have its name in
// front, which makes a table wide.
std::string ShortName(const std::string& name) {
  const std::vector<std::string> ends = absl::StrSplit(name, " to ");
  if (ends.size() != 2) return name;
  size_t same = 0;  // up to the last dot of what both begin with
  for (size_t i = 0; i < std::min(ends[0].size(), ends[1].size()) && ends[0][i] == ends[1][i];
       ++i) {
    if (ends[0][i] == '.') same = i + 1;
  }
  return absl::StrCat(ends[0], " to ", ends[1].substr(same));
}

std::string Percent(double share, int digits) {
  return absl::StrFormat("%.*f%%", digits, 100 * share);
}

std::string Rate(double flops, double seconds) {
  return flops > 0 ? absl::StrFormat("%.1f", Ratio(flops, seconds) / 1e9) : "";
}

std::string Head(const StepReport& report) {
  return absl::StrCat(report.model, " on images of ", absl::StrJoin(report.input, "x"), ", ",
                      report.num_classes,
                      !report.numeric_targets   ? " classes"
                      : report.num_classes == 1 ? " output"
                                                : " outputs",
                      ": a step of ", report.batch, " samples, ", report.threads,
                      report.threads == 1 ? " thread, " : " threads, ", report.optimizer, "\n\n");
}

std::string Notes(const StepReport& report) {
  const engine::DeviceLimits& limits = report.limits;
  return absl::StrFormat(
      "times in ms, medians of %d steps; a whole step took %.2f ms (p10 to p90: %.2f to %.2f)\n"
      "limits of %s, %s, %d thread%s:\n"
      "%.1f GFLOP/s of multiply-adds in registers, %.1f GB/s read and written in memory\n",
      report.steps, report.step_seconds * 1e3, report.step_p10_seconds * 1e3,
      report.step_p90_seconds * 1e3, limits.processor.empty() ? "this processor" : limits.processor,
      limits.instruction_set, report.threads, report.threads == 1 ? "" : "s",
      limits.flops_per_second / 1e9, limits.memory_bytes_per_second / 1e9);
}

}  // namespace

RowLimit LimitOf(const StepRow& row, const engine::DeviceLimits& limits) {
  return {Ratio(row.flops, limits.flops_per_second),
          Ratio(row.bytes, limits.memory_bytes_per_second)};
}

StepTotal TotalOf(const StepReport& report) {
  StepTotal total;
  for (const StepRow& row : report.rows) {
    total.forward_seconds += row.forward_seconds;
    total.backward_seconds += row.backward_seconds;
    total.flops += row.flops;
    total.bytes += row.bytes;
    total.limit_seconds += LimitOf(row, report.limits).seconds();
  }
  return total;
}

std::string StepText(const StepReport& report, bool wide, int width) {
  const StepTotal total = TotalOf(report);
  std::vector<std::string> head = {"LAYER", "FORWARD", "BACKWARD", "SHARE", "GFLOP",
                                   "MB",    "GFLOP/s", "BOUND",    "ROOF"};
  if (wide) head.emplace_back("KERNEL");
  TextTable table(head);
  for (const StepRow& row : report.rows) {
    const RowLimit limit = LimitOf(row, report.limits);
    table.Add({ShortName(row.name), Number(row.forward_seconds * 1e3),
               Number(row.backward_seconds * 1e3),
               Percent(Ratio(row.seconds(), total.seconds()), 1), Number(row.flops / 1e9),
               Number(row.bytes / 1e6), Rate(row.flops, row.seconds()), std::string(limit.bound()),
               Percent(Ratio(limit.seconds(), row.seconds()), 0), row.kernel});
  }
  table.Add({absl::StrFormat("step, %.1f samples/s", report.samples_per_second()),
             Number(total.forward_seconds * 1e3), Number(total.backward_seconds * 1e3),
             Percent(Ratio(total.seconds(), total.seconds()), 1), Number(total.flops / 1e9),
             Number(total.bytes / 1e6), Rate(total.flops, total.seconds()), "",
             Percent(Ratio(total.limit_seconds, total.seconds()), 0)});
  return absl::StrCat(Head(report), table.Text(width), "\n", Notes(report));
}

nlohmann::ordered_json StepJson(const StepReport& report) {
  const StepTotal total = TotalOf(report);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const StepRow& row : report.rows) {
    const RowLimit limit = LimitOf(row, report.limits);
    rows.push_back({{"name", row.name},
                    {"kernel", row.kernel},
                    {"forward_seconds", row.forward_seconds},
                    {"backward_seconds", row.backward_seconds},
                    {"share", Ratio(row.seconds(), total.seconds())},
                    {"flops", row.flops},
                    {"bytes", row.bytes},
                    {"flops_per_second", Ratio(row.flops, row.seconds())},
                    {"bound", limit.bound()},
                    {"limit_seconds", limit.seconds()},
                    {"reached", Ratio(limit.seconds(), row.seconds())}});
  }
  return {{"model", report.model},
          {"input", report.input},
          {report.numeric_targets ? "num_outputs" : "num_classes", report.num_classes},
          {"batch", report.batch},
          {"threads", report.threads},
          {"optimizer", report.optimizer},
          {"processor", report.limits.processor},
          {"instruction_set", report.limits.instruction_set},
          {"peak_flops_per_second", report.limits.flops_per_second},
          {"memory_bytes_per_second", report.limits.memory_bytes_per_second},
          {"steps", report.steps},
          {"step_seconds", report.step_seconds},
          {"step_p10_seconds", report.step_p10_seconds},
          {"step_p90_seconds", report.step_p90_seconds},
          {"samples_per_second", report.samples_per_second()},
          {"rows", rows},
          {"total",
           {{"forward_seconds", total.forward_seconds},
            {"backward_seconds", total.backward_seconds},
            {"flops", total.flops},
            {"bytes", total.bytes},
            {"flops_per_second", Ratio(total.flops, total.seconds())},
            {"limit_seconds", total.limit_seconds},
            {"reached", Ratio(total.limit_seconds, total.seconds())}}}};
}

}  // namespace capstan::client
