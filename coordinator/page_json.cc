#include "coordinator/page_json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "coordinator/core/job.h"
#include "coordinator/core/metric_history.h"
#include "services/proto_json/proto_json.h"
#include "services/timestamp/timestamp.h"
#include "training/spec/validate.h"

namespace capstan::coordinator {
namespace {

using services::ProtoJson;
using services::TimeText;
using Json = nlohmann::ordered_json;

constexpr size_t kMaxLineBytes = 1000;
constexpr size_t kBreakdownPoints = 10;  // the newest, for "now"

std::string TextOf(absl::Time time) {
  google::protobuf::Timestamp stamp;
  SetTime(time, &stamp);
  return TimeText(stamp);
}

Json Head(const PageHead& head) {
  return {{"time", TextOf(head.time)}, {"cluster", ProtoJson(head.cluster)}, {"open", head.open}};
}

Json NodesJson(const std::vector<job::v1::NodeInfo>& nodes) {
  Json list = Json::array();
  for (const job::v1::NodeInfo& node : nodes) list.push_back(ProtoJson(node));
  return list;
}

const job::v1::JobSpec& SpecOf(const job::v1::Job& job) {
  return job.has_resolved() ? job.resolved().spec() : job.spec();
}

// The job without its specs, and what the page has to know of them.
Json JobJson(job::v1::Job job) {
  const bool numbers = training::spec::HasNumericTargets(SpecOf(job));
  job.clear_spec();
  job.clear_resolved();
  Json json = ProtoJson(job);
  json["numeric_targets"] = numbers;
  return json;
}

// "resnet18_v1 on cifar10_bin, 2 workers x 4 devices, 2 shards, dist_sync, seed 7".
std::string Summary(const job::v1::Job& job) {
  const job::v1::JobSpec& spec = SpecOf(job);
  std::string text =
      absl::StrCat(training::spec::ModelTitle(spec.model()), " on ", spec.data().format());
  if (job.has_resolved()) {
    const job::v1::ResolvedSpec& resolved = job.resolved();
    const int64_t batches = training::spec::StepBatches(spec);
    // Moves change their number.
    const int32_t shards = job.shards().empty() ? resolved.num_shards() : job.shards_size();
    absl::StrAppend(
        &text, ", ", resolved.num_workers(),
        resolved.num_workers() == 1 ? " worker x " : " workers x ", resolved.devices_per_worker(),
        resolved.devices_per_worker() == 1 ? " device, " : " devices, ", shards,
        shards == 1 ? " shard" : " shards", ", global batch ", resolved.global_batch() / batches);
    if (batches > 1) {
      absl::StrAppend(&text, " x ", batches,
                      training::spec::LocalSteps(spec) > 1 ? " local steps" : " accumulated");
    }
  }
  if (spec.kvstore().has_type()) absl::StrAppend(&text, ", ", spec.kvstore().type());
  if (spec.training().has_seed()) absl::StrAppend(&text, ", seed ", spec.training().seed());
  return text;
}

Json LogJson(const job::v1::LogLine& line) {
  const std::string who = line.role() == common::v1::ROLE_WORKER ? absl::StrCat("w", line.index())
                          : line.role() == common::v1::ROLE_PARAM_STORE
                              ? absl::StrCat("s", line.index())
                              : "c";
  return {{"time", TimeText(line.time())},
          {"who", who},
          {"level", line.level()},
          {"text", line.text().substr(0, kMaxLineBytes)}};
}

Json CurvesJson(const std::vector<job::v1::MetricPoint>& points) {
  Json steps = Json::array();
  Json loss = Json::array();
  Json accuracy = Json::array();
  Json speed = Json::array();
  Json seconds = Json::array();
  const auto add = [](Json& list, bool known, double value) {
    list.push_back(known && std::isfinite(value) ? Json(value) : Json(nullptr));
  };
  for (const job::v1::MetricPoint& point : points) {
    steps.push_back(point.step());
    add(loss, point.has_loss(), point.loss());
    add(accuracy, point.has_accuracy(), point.accuracy());
    add(speed, point.has_samples_per_second(), point.samples_per_second());
    add(seconds, point.has_breakdown(), point.breakdown().total());
  }
  return {{"step", steps},
          {"loss", loss},
          {"accuracy", accuracy},
          {"samples_per_second", speed},
          {"step_seconds", seconds}};
}

Json LastBreakdown(const std::vector<job::v1::MetricPoint>& points) {
  job::v1::StepBreakdown sum;
  const size_t begin = points.size() - std::min(points.size(), kBreakdownPoints);
  for (size_t i = begin; i < points.size(); ++i) sum = core::Joined(sum, points[i].breakdown());
  return sum.steps() == 0 ? Json(nullptr) : ProtoJson(sum);
}

}  // namespace

std::string OverviewJson(const OverviewPage& page) {
  Json out = Head(page.head);
  Json jobs = Json::array();
  for (job::v1::Job job : page.jobs) {
    job.clear_checkpoints();
    jobs.push_back(JobJson(std::move(job)));
  }
  out["jobs"] = std::move(jobs);
  out["nodes"] = NodesJson(page.nodes);
  return services::Dump(out);
}

std::string JobPageJson(const JobPage& page) {
  Json out = Head(page.head);
  job::v1::Job job = page.job;
  out["summary"] = Summary(job);
  out["steps_per_epoch"] = job.resolved().steps_per_epoch();
  if (const int more = job.events_size() - kPageEvents; more > 0) {
    job.mutable_events()->DeleteSubrange(0, more);
  }
  out["job"] = JobJson(std::move(job));
  out["nodes"] = NodesJson(page.nodes);
  out["log_is_shown"] = page.log_is_shown;
  Json log = Json::array();
  for (const job::v1::LogLine& line : page.log) log.push_back(LogJson(line));
  out["log"] = std::move(log);
  out["metrics"] = CurvesJson(page.points);
  out["breakdown"] = LastBreakdown(page.points);
  return services::Dump(out);
}

}  // namespace capstan::coordinator
