#include "client/text/doctor_text.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/text/job_json.h"
#include "client/text/job_view.h"
#include "client/text/text_table.h"
#include "client/text/top_text.h"
#include "services/proto_json/proto_json.h"

namespace capstan::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kClockSlackSeconds = 1;  // added to half the round trip
constexpr int64_t kLeastFreeBytes = int64_t{256} << 20;
constexpr double kLeastFreeRatio = 0.1;  // of a small file system
constexpr double kSlowRatio = 0.1;       // of the median bandwidth of all pairs

// gRPC codes of the calls between nodes.
enum Code : int {
  kReached = 0,
  kSilent = 4,         // DEADLINE_EXCEEDED
  kDenied = 7,         // PERMISSION_DENIED
  kTooOld = 12,        // UNIMPLEMENTED: reached, but cannot be measured
  kUnknownToken = 16,  // UNAUTHENTICATED
};

bool Reached(const job::v1::PeerReport& peer) {
  return peer.code() == kReached || peer.code() == kTooOld;
}
bool Refused(const job::v1::PeerReport& peer) {
  return peer.code() == kDenied || peer.code() == kUnknownToken;
}

std::string On(const job::v1::NodeInfo& node) {
  return node.host().empty() || node.host() == node.name()
             ? node.name()
             : absl::StrCat(node.name(), " on host ", node.host());
}

std::string PortOf(const std::string& address) {
  const size_t colon = address.rfind(':');
  return address.compare(0, 5, "unix:") == 0 || colon == std::string::npos
             ? "its socket"
             : "TCP port " + address.substr(colon + 1);
}

// Why a shard was not reached, and how to fix it.
std::string WhyNot(const job::v1::PeerReport& peer, const std::string& who) {
  if (peer.code() == kSilent) {
    return absl::StrCat("nothing came back in time, so packets are dropped on the way. Open ",
                        PortOf(peer.address()), " on its host for ", who,
                        " (packet filter, security group, route), or give it another --advertise "
                        "or --interface");
  }
  return absl::StrCat(peer.message().empty() ? "the connection failed" : peer.message(),
                      ". Does its service run, does it listen at that address (--listen, "
                      "--advertise, --interface), and are both certificates of one authority?");
}

std::string ClockText(double seconds) {
  return absl::StrCat(ShortDuration(std::abs(seconds)), seconds > 0 ? " ahead of" : " behind");
}

bool ClockIsWrong(double ahead, double round_trip) {
  return std::abs(ahead) > kClockSlackSeconds + round_trip / 2;
}

std::string UseText(job::v1::FolderUse use) {
  switch (use) {
    case job::v1::FOLDER_USE_STATE:
      return "state";
    case job::v1::FOLDER_USE_CHECKPOINTS:
      return "checkpoints";
    case job::v1::FOLDER_USE_DATA:
      return "data";
    default:
      return "";
  }
}

class Doctor {
 public:
  Doctor(const job::v1::DiagnoseResponse& cluster, const CoordinatorLook& look)
      : cluster_(cluster), look_(look) {}

  std::vector<Finding> Run() {
    if (look_.client_version != cluster_.version()) {
      Note("Version", "coordinator",
           absl::StrCat("the coordinator runs ", cluster_.version(), ", this command is ",
                        look_.client_version, ". Use the command of the coordinator's version"));
    }
    if (ClockIsWrong(look_.ahead_seconds, look_.round_trip_seconds)) {
      Note("Clock", "coordinator",
           absl::StrCat("the coordinator's clock is ", ClockText(look_.ahead_seconds),
                        " this host's clock. Correct the wrong one with a time service "
                        "(chronyd, timedatectl set-ntp true)"));
    }
    for (const job::v1::FolderReport& folder : cluster_.folders()) {
      Folder("coordinator", "the coordinator", folder);
    }
    bool worker = false;
    for (const job::v1::NodeDiagnosis& node : cluster_.nodes()) {
      Node(node);
      worker |= node.node().role() == common::v1::ROLE_WORKER && node.node().state() != "LOST";
    }
    if (!worker) {
      Problem("NoWorker", "coordinator",
              absl::StrCat("no worker is connected, so no job can train. Start capstan_gpu_worker "
                           "with --coordinator ",
                           look_.address,
                           "; a worker that runs but is missing here logs why it cannot connect "
                           "(coordinator_lost)"));
    }
    Pairs();
    std::stable_partition(findings_.begin(), findings_.end(),
                          [](const Finding& finding) { return finding.problem; });
    return std::move(findings_);
  }

 private:
  void Problem(const char* kind, const std::string& subject, const std::string& sentence) {
    findings_.push_back({true, kind, subject, sentence});
  }
  void Note(const char* kind, const std::string& subject, const std::string& sentence) {
    findings_.push_back({false, kind, subject, sentence});
  }

  void Node(const job::v1::NodeDiagnosis& diagnosis) {
    const job::v1::NodeInfo& node = diagnosis.node();
    if (node.state() == "LOST") {
      Problem("NodeLost", node.name(),
              absl::StrCat(On(node), " has not been heard for ",
                           ShortDuration(node.last_seen_seconds()),
                           ". Check that its service runs and that its host reaches the "
                           "coordinator at ",
                           look_.address, "; its log says coordinator_lost and why"));
      return;
    }
    const bool same = node.version() == cluster_.version();
    if (!same) {
      Problem("Version", node.name(),
              absl::StrCat(On(node), " runs version ", node.version(), ", the coordinator ",
                           cluster_.version(), ". Install one version on all hosts",
                           diagnosis.answered() ? ""
                                                : "; this one did not answer, so nothing else "
                                                  "was checked on it"));
    }
    if (!diagnosis.answered()) {
      if (same) {
        Problem("NodeSilent", node.name(),
                absl::StrCat(On(node), " is connected but did not answer, last heard ",
                             ShortDuration(node.last_seen_seconds()),
                             " ago. Check that its host still reaches the coordinator, that it is "
                             "not overloaded, and that its process is not stopped"));
      }
      return;
    }
    if (ClockIsWrong(diagnosis.clock_ahead_seconds(), diagnosis.round_trip_seconds())) {
      Problem("Clock", node.name(),
              absl::StrCat("the clock of ", On(node), " is ",
                           ClockText(diagnosis.clock_ahead_seconds()),
                           " the coordinator's. Run a time service on both hosts (chronyd, "
                           "timedatectl set-ntp true): training continues, but certificates and "
                           "tokens may be refused, and times in logs are wrong"));
    }
    for (const job::v1::FolderReport& folder : diagnosis.folders()) {
      Folder(node.name(), On(node), folder);
    }
    for (const job::v1::DeviceReport& device : diagnosis.devices()) {
      Problem("Device", node.name(),
              absl::StrCat(On(node), " cannot use ", device.name(), ": ", device.error(),
                           ". Install or repair the driver there; a host without a GPU needs "
                           "--devices cpu"));
    }
    for (const std::string& warning : node.warnings()) {
      Problem("SharedCards", node.name(), absl::StrCat(On(node), ": ", warning));
    }
  }

  void Folder(const std::string& name, const std::string& who,
              const job::v1::FolderReport& folder) {
    const std::string what =
        absl::StrCat("the folder ", folder.path(), " (", UseText(folder.use()), ")");
    if (!folder.error().empty()) {
      Problem("Folder", name,
              absl::StrCat(who, " cannot use ", what, ": ", folder.error(),
                           ". Make or mount it there under that path, for the user of the "
                           "service, or name another one (--checkpoint-root, --data-root)"));
      return;
    }
    if (folder.use() == job::v1::FOLDER_USE_DATA) return;  // nobody writes to it
    const auto free = static_cast<double>(folder.free_bytes());
    const auto total = static_cast<double>(folder.total_bytes());
    if (folder.free_bytes() >= kLeastFreeBytes || free >= kLeastFreeRatio * total) return;
    Problem("DiskFull", name,
            absl::StrCat(what, " of ", who, " has ", BytesText(free), " free of ", BytesText(total),
                         ". Free space there, or ",
                         folder.use() == job::v1::FOLDER_USE_STATE
                             ? "no job can be submitted soon"
                             : "no checkpoint can be written soon"));
  }

  void Pairs() {
    std::map<std::string, int> askers, reached;  // by shard
    std::vector<double> widths;
    for (const auto& from : cluster_.nodes()) {
      for (const job::v1::PeerReport& peer : from.peers()) {
        ++askers[peer.node()];
        if (Reached(peer)) ++reached[peer.node()];
        if (peer.has_bytes_per_second()) widths.push_back(peer.bytes_per_second());
      }
    }
    std::sort(widths.begin(), widths.end());
    std::set<std::string> said;  // shards that no node reaches
    for (const auto& from : cluster_.nodes()) {
      for (const job::v1::PeerReport& peer : from.peers()) {
        const std::string pair = absl::StrCat(from.node().name(), " -> ", peer.node());
        if (Refused(peer)) {
          Problem("ShardRefuses", pair,
                  absl::StrCat(peer.node(), " refuses ", On(from.node()), ": ", peer.message(),
                               ". Give ", peer.node(),
                               " the tokens.json with that node's token "
                               "(--tokens), and the node its --token-file"));
        } else if (!Reached(peer) && reached[peer.node()] == 0 && askers[peer.node()] > 1) {
          if (!said.insert(peer.node()).second) continue;
          Problem(
              "ShardUnreachable", peer.node(),
              absl::StrCat("none of ", askers[peer.node()], " nodes reaches ", peer.node(), " at ",
                           peer.address(), ": ", WhyNot(peer, "the workers and shards")));
        } else if (!Reached(peer)) {
          Problem("PairUnreachable", pair,
                  absl::StrCat(On(from.node()), " does not reach ", peer.node(), " at ",
                               peer.address(), reached[peer.node()] > 0 ? ", others do: " : ": ",
                               WhyNot(peer, On(from.node()))));
        } else if (peer.has_bytes_per_second() && widths.size() > 2 &&
                   peer.bytes_per_second() < kSlowRatio * widths[widths.size() / 2]) {
          Note("SlowPair", pair,
               absl::StrCat("from ", On(from.node()), " to ", peer.node(), " go ",
                            BytesText(peer.bytes_per_second()), "/s, between the others ",
                            BytesText(widths[widths.size() / 2]),
                            "/s. Check its cable, its switch port and other traffic there"));
        }
      }
    }
  }

  const job::v1::DiagnoseResponse& cluster_;
  const CoordinatorLook& look_;
  std::vector<Finding> findings_;
};

std::string Milliseconds(double seconds) { return absl::StrFormat("%.3g ms", 1e3 * seconds); }

std::string Signed(double seconds) {
  const double size = std::abs(seconds);
  return absl::StrCat(seconds < 0 ? "-" : "+", size < 1 ? Milliseconds(size) : ShortDuration(size));
}

Json FolderJson(const std::string& node, const job::v1::FolderReport& folder) {
  const bool usable = folder.error().empty();
  return {{"node", node},
          {"path", folder.path()},
          {"use", UseText(folder.use())},
          {"error", folder.error()},
          {"free_bytes", usable ? Json(folder.free_bytes()) : Json(nullptr)},
          {"total_bytes", usable ? Json(folder.total_bytes()) : Json(nullptr)}};
}

}  // namespace

std::vector<Finding> FindingsOf(const job::v1::DiagnoseResponse& cluster,
                                const CoordinatorLook& look) {
  return Doctor(cluster, look).Run();
}

bool AnyProblem(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.problem; });
}

std::string FindingsText(const std::vector<Finding>& findings) {
  if (findings.empty()) return "nothing found\n";
  std::string text;
  for (const Finding& finding : findings) {
    absl::StrAppend(&text, finding.problem ? "problem" : "note", "  ", finding.kind, "  ",
                    Printable(finding.sentence), "\n");
  }
  return text;
}

std::string DoctorText(const job::v1::DiagnoseResponse& cluster, const CoordinatorLook& look,
                       const std::vector<Finding>& findings, int width) {
  std::string text = absl::StrCat(
      "coordinator ", Printable(cluster.version()), " at ", look.address, "  round trip ",
      Milliseconds(look.round_trip_seconds), "  clock ", Signed(look.ahead_seconds), "\n");
  TextTable nodes({"NODE", "ROLE", "HOST", "STATE", "VERSION", "ROUND TRIP", "CLOCK", "DEVICES"});
  TextTable pairs({"FROM", "TO", "ADDRESS", "ROUND TRIP", "BANDWIDTH"});
  TextTable folders({"NODE", "FOLDER", "USE", "FREE"});
  const auto add_folder = [&](const std::string& name, const job::v1::FolderReport& folder) {
    folders.Add({name, folder.path(), UseText(folder.use()),
                 !folder.error().empty()
                     ? folder.error()
                     : absl::StrCat(BytesText(static_cast<double>(folder.free_bytes())), " of ",
                                    BytesText(static_cast<double>(folder.total_bytes())))});
  };
  for (const auto& folder : cluster.folders()) add_folder("coordinator", folder);
  bool any_pair = false;
  for (const auto& from : cluster.nodes()) {
    const job::v1::NodeInfo& node = from.node();
    nodes.Add({node.name(), RoleName(node.role()), node.host(), node.state(), node.version(),
               from.answered() ? Milliseconds(from.round_trip_seconds()) : "no answer",
               from.answered() ? Signed(from.clock_ahead_seconds()) : "",
               absl::StrJoin(node.devices(), ",")});
    for (const job::v1::PeerReport& peer : from.peers()) {
      any_pair = true;
      pairs.Add({node.name(), peer.node(), peer.address(),
                 Reached(peer)
                     ? peer.has_round_trip_seconds() ? Milliseconds(peer.round_trip_seconds()) : ""
                     : "not reached",
                 peer.has_bytes_per_second()
                     ? absl::StrCat(BytesText(peer.bytes_per_second()), "/s")
                     : ""});
    }
    for (const auto& folder : from.folders()) add_folder(node.name(), folder);
  }
  if (!cluster.nodes().empty()) absl::StrAppend(&text, "\n", nodes.Text(width));
  if (any_pair) absl::StrAppend(&text, "\n", pairs.Text(width));
  absl::StrAppend(&text, "\n", folders.Text(width), "\n", FindingsText(findings));
  return text;
}

std::string DoctorJson(const job::v1::DiagnoseResponse* cluster, const CoordinatorLook& look,
                       const std::vector<Finding>& findings, double seconds) {
  Json json = {{"coordinator",
                {{"address", look.address},
                 {"version", nullptr},
                 {"round_trip_seconds", nullptr},
                 {"clock_ahead_seconds", nullptr}}},
               {"nodes", Json::array()},
               {"pairs", Json::array()},
               {"folders", Json::array()},
               {"findings", Json::array()},
               {"seconds", seconds}};
  for (const Finding& finding : findings) {
    json["findings"].push_back({{"severity", finding.problem ? "problem" : "note"},
                                {"kind", finding.kind},
                                {"subject", finding.subject},
                                {"message", finding.sentence}});
  }
  if (cluster == nullptr) return services::Dump(json);
  json["coordinator"]["version"] = cluster->version();
  json["coordinator"]["round_trip_seconds"] = look.round_trip_seconds;
  json["coordinator"]["clock_ahead_seconds"] = look.ahead_seconds;
  for (const auto& folder : cluster->folders()) {
    json["folders"].push_back(FolderJson("coordinator", folder));
  }
  for (const auto& from : cluster->nodes()) {
    const job::v1::NodeInfo& node = from.node();
    Json devices = Json::array();
    for (const std::string& device : node.devices()) devices.push_back(device);
    Json broken = Json::array();
    for (const job::v1::DeviceReport& device : from.devices()) {
      broken.push_back({{"name", device.name()}, {"error", device.error()}});
    }
    const bool answered = from.answered();
    json["nodes"].push_back(
        {{"name", node.name()},
         {"role", RoleName(node.role())},
         {"host", node.host()},
         {"state", node.state()},
         {"version", node.version()},
         {"answered", answered},
         {"round_trip_seconds", answered ? Json(from.round_trip_seconds()) : Json(nullptr)},
         {"clock_ahead_seconds", answered ? Json(from.clock_ahead_seconds()) : Json(nullptr)},
         {"devices", devices},
         {"broken_devices", broken}});
    for (const job::v1::PeerReport& peer : from.peers()) {
      json["pairs"].push_back(
          {{"from", node.name()},
           {"to", peer.node()},
           {"address", peer.address()},
           {"reached", Reached(peer)},
           {"message", peer.message()},
           {"round_trip_seconds",
            peer.has_round_trip_seconds() ? Json(peer.round_trip_seconds()) : Json(nullptr)},
           {"bytes_per_second",
            peer.has_bytes_per_second() ? Json(peer.bytes_per_second()) : Json(nullptr)}});
    }
    for (const auto& folder : from.folders()) {
      json["folders"].push_back(FolderJson(node.name(), folder));
    }
  }
  return services::Dump(json);
}

}  // namespace capstan::client
