#include "client/text/top_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/text/job_json.h"
#include "client/text/job_view.h"
#include "client/text/text_table.h"
#include "services/proto_json/proto_json.h"

namespace capstan::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};

std::string Percent(bool known, double ratio) {
  return known ? absl::StrFormat("%.0f%%", 100 * ratio) : "";
}

// Prints both in the unit of the larger one.
std::string OfText(bool known, double used, double total) {
  if (!known) return "";
  int unit = 0;
  for (; total >= 1024 && unit < 4; ++unit) {
    total /= 1024;
    used /= 1024;
  }
  return absl::StrFormat("%.1f/%.1f %s", used, total, kUnits[unit]);
}

std::string Rate(bool known, double value) {
  return known ? absl::StrFormat("%.*f", value < 10 ? 1 : 0, value) : "";
}

std::string Milliseconds(bool known, double seconds) {
  return known ? absl::StrFormat("%.3g ms", 1e3 * seconds) : "";
}

std::string Wire(const common::v1::ShardLoad& load) {
  if (!load.has_bytes_in_per_second()) return "";
  return absl::StrCat(BytesText(load.bytes_in_per_second()), "/s in, ",
                      BytesText(load.bytes_out_per_second()), "/s out");
}

// The job that holds a device, and its rank there.
std::string HolderText(const job::v1::NodeInfo& node, int device,
                       const std::vector<job::v1::Job>& jobs) {
  if (device >= node.device_jobs_size() || node.device_jobs(device).empty()) return "";
  const std::string& id = node.device_jobs(device);
  for (const job::v1::Job& job : jobs) {
    if (job.job_id() != id) continue;
    for (const job::v1::Member& worker : job.workers()) {
      if (worker.node() == node.name() && worker.state() != "FAILED" &&
          std::find(worker.devices().begin(), worker.devices().end(), device) !=
              worker.devices().end()) {
        return absl::StrCat(id, " (", worker.index(), ")");
      }
    }
  }
  return id;
}

void AddNode(const job::v1::NodeInfo& node, const std::vector<job::v1::Job>& jobs,
             TextTable& table) {
  const common::v1::NodeUsage& usage = node.usage();
  const std::string slots =
      node.devices().empty() ? "" : absl::StrCat(node.busy_devices(), "/", node.devices_size());
  const int rows = std::max(node.devices_size(), 1);
  for (int i = 0; i < rows; ++i) {
    std::vector<std::string> row =
        i > 0 ? std::vector<std::string>(5, " ")
              : std::vector<std::string>{
                    node.name(), node.state(), slots,
                    Percent(usage.has_cpu_ratio(), usage.cpu_ratio()),
                    OfText(usage.has_memory_used_bytes() && usage.has_memory_total_bytes(),
                           static_cast<double>(usage.memory_used_bytes()),
                           static_cast<double>(usage.memory_total_bytes()))};
    static const common::v1::DeviceUsage kNothing;
    const common::v1::DeviceUsage& card = i < usage.devices_size() ? usage.devices(i) : kNothing;
    row.push_back(i < node.devices_size() ? node.devices(i) : "");
    row.push_back(Percent(card.has_utilization_ratio(), card.utilization_ratio()));
    row.push_back(OfText(card.has_memory_used_bytes() && card.has_memory_total_bytes(),
                         static_cast<double>(card.memory_used_bytes()),
                         static_cast<double>(card.memory_total_bytes())));
    row.push_back(card.has_temperature_celsius()
                      ? absl::StrFormat("%.0f C", card.temperature_celsius())
                      : "");
    row.push_back(card.has_power_watts() ? absl::StrFormat("%.0f W", card.power_watts()) : "");
    row.push_back(node.devices().empty() ? absl::StrJoin(node.job_ids(), ",")
                                         : HolderText(node, i, jobs));
    table.Add(std::move(row));
  }
}

// The reports of shards are of different steps. After so many, one more or less makes no difference.
constexpr int64_t kFewestSteps = 20;

// What a shard sends and receives in a step. 0: not known yet.
double TrafficPerStep(const job::v1::Member& shard) {
  const common::v1::ShardLoad& load = shard.load();
  if (load.traffic_steps() < kFewestSteps) return 0;
  return static_cast<double>(load.traffic_bytes()) / static_cast<double>(load.traffic_steps());
}

// Of all shards of a job: their traffic per step, and that of the busiest one over the mean. 0: not known
// of all of them yet.
struct Traffic {
  double sum = 0;
  double balance = 0;
};
Traffic TrafficOf(const job::v1::Job& job) {
  Traffic traffic;
  double most = 0;
  for (const job::v1::Member& shard : job.shards()) {
    const double its = TrafficPerStep(shard);
    if (its <= 0) return {};
    traffic.sum += its;
    most = std::max(most, its);
  }
  if (traffic.sum > 0) traffic.balance = most * job.shards_size() / traffic.sum;
  return traffic;
}

}  // namespace

std::string BytesText(double bytes) {
  int unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
  return absl::StrFormat("%.*f %s", bytes >= 100 || unit == 0 ? 0 : 1, bytes, kUnits[unit]);
}

std::string TopText(const job::v1::ListNodesResponse& nodes, const std::vector<job::v1::Job>& jobs,
                    const TopView& view) {
  const job::v1::ClusterInfo& cluster = nodes.cluster();
  std::string out = absl::StrCat(
      "coordinator ", Printable(cluster.version()), "  up ",
      ShortDuration(cluster.uptime_seconds()), "  jobs: ", cluster.running_jobs(), " running, ",
      cluster.pending_jobs(), " pending  slots ", cluster.busy_slots(), "/", cluster.slots(), "\n");
  if (view.nodes && !nodes.nodes().empty()) {
    TextTable table({"NODE", "STATE", "SLOTS", "CPU", "MEM", "DEVICE", "UTIL", "DEVICE MEM", "TEMP",
                     "POWER", "JOB (RANK)"});
    for (const job::v1::NodeInfo& node : nodes.nodes()) AddNode(node, jobs, table);
    out += table.Text(view.width);
  }
  const bool any_shard = std::any_of(jobs.begin(), jobs.end(),
                                     [](const job::v1::Job& job) { return job.shards_size() > 0; });
  if (view.shards && any_shard) out += ShardsText(jobs, /*wide=*/false, view.width);
  if (view.jobs && !jobs.empty()) {
    TextTable table({"JOB", "STATE", "STEP", "LOSS", "SAMPLES/S", "ETA"});
    for (const job::v1::Job& job : jobs) {
      const job::v1::Progress& p = job.progress();
      table.Add({job.job_id(), StateName(job.state()),
                 p.total_steps() > 0 ? absl::StrCat(p.step(), "/", p.total_steps()) : "",
                 p.has_loss() ? absl::StrFormat("%.4f", p.loss()) : "",
                 Rate(p.has_samples_per_second(), p.samples_per_second()),
                 p.has_eta_seconds() ? ShortDuration(p.eta_seconds()) : ""});
    }
    out += table.Text(view.width);
  }
  return out;
}

std::string TopJson(const job::v1::ListNodesResponse& nodes,
                    const std::vector<job::v1::Job>& jobs) {
  return services::Dump(
      {{"cluster", services::ProtoJson(nodes.cluster())},
       {"nodes", Json::parse(NodeListJson({nodes.nodes().begin(), nodes.nodes().end()}))},
       {"jobs", Json::parse(JobListJson(jobs))},
       {"shards", Json::parse(ShardsJson(jobs))}});
}

std::string ShardsText(const std::vector<job::v1::Job>& jobs, bool wide, int width) {
  std::vector<std::string> head = {"SHARD",    "JOB",      "NODE",   "STATE",    "VERSION",
                                   "CHUNKS",   "RESIDENT", "PUSH/S", "P99 PUSH", "PULL/S",
                                   "P99 PULL", "SHARE",    "WIRE"};
  if (wide) head.push_back("ADDRESS");
  TextTable table(head);
  std::string balances;
  for (const job::v1::Job& job : jobs) {
    const Traffic traffic = TrafficOf(job);
    if (traffic.balance > 0 && job.shards_size() > 1) {
      absl::StrAppend(&balances, job.job_id(), ": balance ",
                      absl::StrFormat("%.3f", traffic.balance),
                      ", the traffic of the busiest shard over the mean\n");
    }
    for (const job::v1::Member& shard : job.shards()) {
      const common::v1::ShardLoad& load = shard.load();
      const common::v1::ShardRoute& route = shard.route();
      std::vector<std::string> row = {
          absl::StrCat("s", shard.index()),
          job.job_id(),
          shard.node(),
          shard.state(),
          absl::StrCat(shard.step()),
          shard.has_route() ? absl::StrCat(route.first_chunk(), "-",
                                           route.first_chunk() + route.chunk_count() - 1)
                            : "",
          shard.has_load() ? BytesText(static_cast<double>(load.resident_bytes())) : "",
          Rate(load.has_pushes_per_second(), load.pushes_per_second()),
          Milliseconds(load.has_push_p99_seconds(), load.push_p99_seconds()),
          Rate(load.has_pulls_per_second(), load.pulls_per_second()),
          Milliseconds(load.has_pull_p99_seconds(), load.pull_p99_seconds()),
          traffic.sum > 0 ? absl::StrFormat("%.1f%%", 100 * TrafficPerStep(shard) / traffic.sum)
                          : "",
          Wire(load)};
      if (wide) row.push_back(route.address());
      table.Add(std::move(row));
    }
  }
  return table.Text(width) + balances;
}

std::string ShardsJson(const std::vector<job::v1::Job>& jobs) {
  Json out = Json::array();
  for (const job::v1::Job& job : jobs) {
    const Traffic traffic = TrafficOf(job);
    for (const job::v1::Member& shard : job.shards()) {
      Json one = {{"job_id", job.job_id()}};
      one.update(services::ProtoJson(shard));
      one.erase("devices");
      if (traffic.sum > 0) {
        one["traffic_share"] = TrafficPerStep(shard) / traffic.sum;
        one["job_balance"] = traffic.balance;
      }
      out.push_back(std::move(one));
    }
  }
  return services::Dump(out);
}

std::string NodeText(const job::v1::NodeInfo& node) {
  const common::v1::NodeUsage& usage = node.usage();
  std::string out = absl::StrCat("Node       ", Printable(node.name()), "  ", node.state(), "\n");
  absl::StrAppend(&out, "Role       ", RoleName(node.role()), " on host ", Printable(node.host()),
                  ", version ", Printable(node.version()), ", incarnation ", node.incarnation(),
                  "\n");
  absl::StrAppend(&out, "Seen       ", ShortDuration(node.last_seen_seconds()), " ago\n");
  if (!node.data_address().empty()) {
    absl::StrAppend(&out, "Address    ", Printable(node.data_address()), "\n");
  }
  if (usage.has_memory_used_bytes()) {
    absl::StrAppend(&out, "Host       ", Percent(usage.has_cpu_ratio(), usage.cpu_ratio()),
                    usage.has_cpu_ratio() ? " of the cores, " : "",
                    OfText(true, static_cast<double>(usage.memory_used_bytes()),
                           static_cast<double>(usage.memory_total_bytes())),
                    "\n");
  }
  for (int i = 0; i < node.devices_size(); ++i) {
    const std::string job = i < node.device_jobs_size() ? node.device_jobs(i) : "";
    absl::StrAppend(&out, i == 0 ? "Devices    " : "           ", Printable(node.devices(i)), "  ",
                    job.empty() ? "free" : Printable(job), "\n");
  }
  for (const std::string& warning : node.warnings()) {
    absl::StrAppend(&out, "Warning    ", Printable(warning), "\n");
  }
  absl::StrAppend(&out, "Jobs       ",
                  node.job_ids().empty() ? "none" : Printable(absl::StrJoin(node.job_ids(), ", ")),
                  "\n");
  return out;
}

}  // namespace capstan::client
