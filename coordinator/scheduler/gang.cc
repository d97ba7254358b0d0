#include "coordinator/scheduler/gang.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/check/mutant.h"

namespace capstan::coordinator::scheduler {
namespace {

// Which nodes and devices count.
enum class Count {
  kFree,    // of nodes that take work, what nobody holds
  kUsable,  // of nodes that take work, held or not
  kKnown    // of all nodes that are neither lost nor drained, excluded or not, held or not
};

bool OfVersion(const Node& node, const GangRequest& request) {
  return !request.version.has_value() || node.version == *request.version;
}

bool Excludes(const std::set<std::string>& names, const Node& node) {
  return !names.empty() && names.count(std::string(node.name)) > 0;
}

int DeviceCount(const Node& node) { return static_cast<int>(node.devices.size()); }
const Device& At(const Node& node, int device) { return node.devices[static_cast<size_t>(device)]; }

// Who holds which cards, so that no two workers compute on one. A device without a UUID (a CPU, or
// of an older worker) is never taken here: its slot alone says whether it is held. Nor is one that
// the same node offers twice: whoever started it so wants two devices of one card.
class HeldCards {
 public:
  HeldCards() = default;  // nobody holds any
  // Slots of nodes that are not lost.
  explicit HeldCards(const Nodes& nodes) {
    for (const Node& node : nodes) {
      if (node.lost) continue;
      for (int i = 0; i < DeviceCount(node); ++i) {
        if (!At(node, i).holder.empty()) Take(node, i);
      }
    }
  }

  // By another node than this one.
  bool Taken(const Node& node, int device) const {
    const absl::string_view uuid = At(node, device).uuid;
    if (uuid.empty()) return false;
    const auto it = holder_.find({node.host, uuid});
    return it != holder_.end() && it->second != node.name;
  }
  void Take(const Node& node, int device) {
    const absl::string_view uuid = At(node, device).uuid;
    if (!uuid.empty()) holder_.try_emplace({node.host, uuid}, node.name);
  }

 private:
  using Card = std::pair<absl::string_view, absl::string_view>;  // host, UUID
  std::map<Card, absl::string_view> holder_;                     // name of the node
};

// In the order of which a newer version is greater: "0.10.0" than "0.9.1". What is no number is less
// than any.
std::vector<std::pair<int64_t, std::string>> AgeOf(const std::string& version) {
  std::vector<std::pair<int64_t, std::string>> parts;
  for (const absl::string_view part : absl::StrSplit(version, '.')) {
    int64_t number = -1;
    if (!absl::SimpleAtoi(part, &number)) number = -1;
    parts.emplace_back(number, part);
  }
  return parts;
}

// What nodes that are not lost have registered as, the newest first.
std::vector<std::string> VersionsOf(const Nodes& nodes) {
  std::set<std::string> versions;
  for (const Node& node : nodes) {
    if (!node.lost) versions.emplace(node.version);
  }
  std::vector<std::string> sorted(versions.begin(), versions.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const std::string& a, const std::string& b) { return AgeOf(a) > AgeOf(b); });
  return sorted;
}

// One request for each version that nodes have registered, the newest first.
std::vector<GangRequest> ByVersion(const Nodes& nodes, const GangRequest& request) {
  if (request.version.has_value() || request.num_shards == 0) return {request};
  std::vector<GangRequest> requests;
  for (std::string& version : VersionsOf(nodes)) {
    requests.push_back(request);
    requests.back().version = std::move(version);
  }
  return requests;
}

int Least(const GangRequest& request) {
  if (CAPSTAN_MUTANT("begins_with_one_worker") && request.min_workers > 0 &&
      request.min_workers < request.num_workers) {
    return 1;
  }
  return request.min_workers > 0 ? request.min_workers : request.num_workers;
}

bool Holds(const std::vector<int>& devices, int device) {
  return std::find(devices.begin(), devices.end(), device) != devices.end();
}

// The CPU devices that a worker on `node` would get beside those that were `dealt` there; empty: not
// enough of them.
std::vector<int> CpusOn(const Node& node, const GangRequest& request, Count count,
                        const std::vector<int>& dealt) {
  std::vector<int> slots;
  for (int i = 0; i < DeviceCount(node); ++i) {
    if (At(node, i).cpu && !Holds(dealt, i)) slots.push_back(i);
  }
  const std::vector<int>& named = request.device_indices;
  const bool has_named =
      std::all_of(named.begin(), named.end(), [&slots](int i) { return Holds(slots, i); });
  const auto wanted = static_cast<size_t>(request.devices_per_worker);
  const bool spread = !has_named || (named.empty() && slots.size() < wanted);
  if (spread && !dealt.empty()) return {};
  if (!named.empty() && has_named) slots = named;
  if (count == Count::kFree) {
    const auto held = std::remove_if(slots.begin(), slots.end(),
                                     [&node](int i) { return !At(node, i).holder.empty(); });
    if (held != slots.end() && (spread || !named.empty())) return {};  // it needs all of them
    slots.erase(held, slots.end());
  }
  if (slots.empty() || (!spread && slots.size() < wanted)) return {};
  std::vector<int> devices;
  for (size_t i = 0; i < wanted; ++i) devices.push_back(slots[i % slots.size()]);
  return devices;
}

// The same of cards.
std::vector<int> CardsOn(const Node& node, const GangRequest& request, Count count,
                         const HeldCards& held, const std::vector<int>& dealt) {
  const auto usable = [&](int i) {
    return i >= 0 && i < DeviceCount(node) && !At(node, i).cpu && !held.Taken(node, i) &&
           !Holds(dealt, i) && (count != Count::kFree || At(node, i).holder.empty());
  };
  std::vector<int> devices;
  if (!request.device_indices.empty()) {
    for (const int i : request.device_indices) {
      if (!usable(i)) return {};
      devices.push_back(i);
    }
    return devices;
  }
  for (int i = 0; i < DeviceCount(node); ++i) {
    if (static_cast<int>(devices.size()) == request.devices_per_worker) break;
    if (usable(i)) devices.push_back(i);
  }
  if (static_cast<int>(devices.size()) < request.devices_per_worker) return {};
  return devices;
}

bool Counts(const Node& node, const GangRequest& request, Count count) {
  if (!node.worker || !OfVersion(node, request)) return false;
  return count == Count::kKnown ? !node.lost && !node.drained
                                : node.takes_work && !Excludes(request.exclude, node);
}

int CountOf(const std::vector<Gang::Worker>& workers, const GangRequest& request) {
  int count = 0;
  for (const Gang::Worker& worker : workers) {
    count += WorkersFor(worker.devices.size(), request.devices_per_worker);
  }
  return count;
}

std::vector<Gang::Worker> WorkersOf(const Nodes& nodes, const GangRequest& request, bool gpus,
                                    Count count) {
  std::vector<Gang::Worker> workers;
  HeldCards held = gpus && count == Count::kFree ? HeldCards(nodes) : HeldCards();
  int missing = request.num_workers;
  // The devices of one more worker; false: it has not so many.
  const auto deal = [&](const Node& node, std::vector<int>& dealt) {
    const std::vector<int> devices =
        gpus ? CardsOn(node, request, count, held, dealt) : CpusOn(node, request, count, dealt);
    if (devices.empty()) return false;
    // Another worker of this host gets other ones.
    for (const int device : devices) held.Take(node, device);
    dealt.insert(dealt.end(), devices.begin(), devices.end());
    --missing;
    return true;
  };
  for (const Node& node : nodes) {
    if (missing == 0) break;
    std::vector<int> devices;
    if (Counts(node, request, count) && deal(node, devices)) {
      workers.push_back({std::string(node.name), std::move(devices)});
    }
  }
  // Whom no node of his own is left for is a part of another one's task, in turn.
  const bool several = !request.one_per_node && request.device_indices.empty();
  for (bool more = several; more && missing > 0;) {
    more = false;
    for (Gang::Worker& worker : workers) {
      if (missing > 0 && deal(*Find(nodes, worker.node), worker.devices)) more = true;
    }
  }
  return workers;
}

std::vector<std::string> ShardsOf(const Nodes& nodes, const GangRequest& request) {
  std::vector<std::pair<size_t, absl::string_view>> free;
  for (const Node& node : nodes) {
    if (!node.takes_work || node.worker || Excludes(request.exclude, node)) continue;
    if (!OfVersion(node, request)) continue;
    free.emplace_back(node.jobs, node.name);
  }
  std::sort(free.begin(), free.end());
  std::vector<std::string> shards;
  for (const auto& entry : free) {
    if (static_cast<int>(shards.size()) == request.num_shards) break;
    shards.emplace_back(entry.second);
  }
  std::sort(shards.begin(), shards.end());
  return shards;
}

// Why `auto` takes CPUs though there are cards; empty: there are none, or the job asks for a kind.
std::string NoCardsText(const Nodes& nodes, const GangRequest& request) {
  GangRequest any = request;
  any.devices_per_worker = 1;
  any.device_indices.clear();
  if (request.device != "auto" || WorkersOf(nodes, any, true, Count::kKnown).empty()) return "";
  const int least = Least(request);
  const int there = CountOf(WorkersOf(nodes, request, true, Count::kKnown), request);
  return absl::StrCat(
      least, least == 1 ? " worker" : " workers", " with ", request.devices_per_worker,
      request.devices_per_worker == 1 ? " GPU" : " GPUs", least == 1 ? "" : " each",
      least == 1 ? " is" : " are", " needed, ", there, there == 1 ? " is there" : " are there");
}

bool Enough(const Gang& gang, const GangRequest& request) {
  return gang.num_workers >= Least(request) &&
         static_cast<int>(gang.shards.size()) == request.num_shards;
}

// "a has them", "a, b, c and 2 more have them": the jobs that hold what counts; empty: nobody does.
std::string HoldersText(const Nodes& nodes, const GangRequest& request, bool gpus, int held) {
  constexpr size_t kNamed = 3;
  std::set<std::string> jobs;
  for (const Node& node : nodes) {
    if (!Counts(node, request, Count::kUsable)) continue;
    for (const Device& device : node.devices) {
      if (!device.holder.empty() && device.cpu != gpus) jobs.emplace(device.holder);
    }
  }
  if (jobs.empty()) return "";
  std::vector<std::string> names(jobs.begin(), jobs.end());
  if (names.size() > kNamed) {
    const size_t more = names.size() - kNamed;
    names.resize(kNamed);
    names.back() += absl::StrCat(" and ", more, " more");
  }
  return absl::StrCat(" (", absl::StrJoin(names, ", "), jobs.size() == 1 ? " has " : " have ",
                      held == 1 ? "it)" : "them)");
}

// "1 is there", "0 of 2 are free (lenet-x3n9 has them)".
std::string FreeText(const Nodes& nodes, const GangRequest& request, bool gpus) {
  GangRequest all = request;
  all.num_workers = std::numeric_limits<int>::max();
  const int there = CountOf(WorkersOf(nodes, all, gpus, Count::kUsable), request);
  const int free = CountOf(WorkersOf(nodes, all, gpus, Count::kFree), request);
  if (free >= there) return absl::StrCat(there, there == 1 ? " is there" : " are there");
  return absl::StrCat(free, " of ", there, free == 1 ? " is free" : " are free",
                      HoldersText(nodes, request, gpus, there - free));
}

// There are enough free nodes, and not of one version: two that differ.
std::string VersionsText(const Nodes& nodes, const GangRequest& request, bool gpus) {
  std::vector<std::string> names = ShardsOf(nodes, request);
  for (const Gang::Worker& worker : WorkersOf(nodes, request, gpus, Count::kFree)) {
    names.insert(names.begin(), worker.node);
  }
  const auto text = [](const Node& node) {
    return absl::StrCat(node.worker ? "worker " : "param_store ", node.name, " is of ",
                        node.version.empty() ? "none" : node.version);
  };
  const Node* first = nullptr;
  for (const std::string& name : names) {
    const Node* const node = Find(nodes, name);
    if (first == nullptr) first = node;
    if (node->version == first->version) continue;
    return absl::StrCat("its workers and param_stores must have one version: ", text(*first), ", ",
                        text(*node));
  }
  return "";
}

template <typename AnyNodes>
auto* FindIn(AnyNodes& nodes, absl::string_view name) {
  const auto it =
      std::lower_bound(nodes.begin(), nodes.end(), name,
                       [](const Node& node, absl::string_view than) { return node.name < than; });
  return it == nodes.end() || it->name != name ? nullptr : &*it;
}

// The homes that nodes of one version can give; some may have none.
std::map<int32_t, std::string> HomesOf(const std::string& version, const Nodes& nodes,
                                       const HomesRequest& request) {
  std::map<int32_t, std::string> homes;
  std::set<absl::string_view> used;
  for (const HomesRequest::Shard& shard : request.shards) {
    if (!shard.needs) used.insert(shard.node);
  }
  for (const bool same_name : {true, false}) {
    for (const HomesRequest::Shard& shard : request.shards) {
      if (!shard.needs || homes.count(shard.index) > 0) continue;
      const Node* best = nullptr;
      for (const Node& node : nodes) {
        if (!node.takes_work || node.worker || used.count(node.name) > 0) continue;
        if (node.version != version) continue;
        if (same_name && node.name != shard.node) continue;
        if (Excludes(request.exclude, node)) continue;
        if (best == nullptr || node.jobs < best->jobs) best = &node;
      }
      if (best == nullptr) continue;
      homes.emplace(shard.index, best->name);
      used.insert(best->name);
    }
  }
  return homes;
}

}  // namespace

Node* Find(Nodes& nodes, absl::string_view name) { return FindIn(nodes, name); }

const Node* Find(const Nodes& nodes, absl::string_view name) { return FindIn(nodes, name); }

std::optional<std::map<int32_t, std::string>> FindHomes(const Nodes& nodes,
                                                        const HomesRequest& request) {
  const std::vector<std::string> versions =
      request.version.has_value() ? std::vector<std::string>{*request.version} : VersionsOf(nodes);
  const auto missing = static_cast<size_t>(std::count_if(
      request.shards.begin(), request.shards.end(), [](const auto& shard) { return shard.needs; }));
  for (const std::string& version : versions) {
    const auto computes = [&version](const Node& node) {
      return node.takes_work && node.worker && node.version == version;
    };
    if (versions.size() > 1 && std::none_of(nodes.begin(), nodes.end(), computes)) continue;
    std::map<int32_t, std::string> homes = HomesOf(version, nodes, request);
    if (homes.size() == missing) return homes;
  }
  return std::nullopt;
}

int WorkersFor(size_t devices, int devices_per_worker) {
  return std::max(1, static_cast<int>(devices) / std::max(1, devices_per_worker));
}

bool WantsGpus(const Nodes& nodes, const GangRequest& request) {
  if (request.device != "auto") return request.device == "gpu";
  const std::vector<GangRequest> requests = ByVersion(nodes, request);
  return std::any_of(requests.begin(), requests.end(), [&nodes](const GangRequest& one) {
    return CountOf(WorkersOf(nodes, one, true, Count::kKnown), one) >= Least(one);
  });
}

std::vector<Gang::Worker> FreeWorkers(const Nodes& nodes, const GangRequest& request) {
  return WorkersOf(nodes, request, WantsGpus(nodes, request), Count::kFree);
}

std::optional<Gang> FindGang(const Nodes& nodes, const GangRequest& request) {
  const bool gpus = WantsGpus(nodes, request);
  std::optional<Gang> best;
  for (const GangRequest& one : ByVersion(nodes, request)) {
    Gang gang;
    gang.on_gpus = gpus;
    gang.workers = WorkersOf(nodes, one, gpus, Count::kFree);
    gang.num_workers = CountOf(gang.workers, one);
    gang.shards = ShardsOf(nodes, one);
    if (!Enough(gang, one)) continue;
    if (!best.has_value() || gang.num_workers > best->num_workers) best = std::move(gang);
  }
  return best;
}

bool CouldFit(const Nodes& nodes, const GangRequest& request) {
  const bool gpus = WantsGpus(nodes, request);
  const std::vector<GangRequest> requests = ByVersion(nodes, request);
  return std::any_of(requests.begin(), requests.end(), [&](const GangRequest& one) {
    Gang gang;
    gang.workers = WorkersOf(nodes, one, gpus, Count::kUsable);
    gang.num_workers = CountOf(gang.workers, one);
    gang.shards = ShardsOf(nodes, one);
    return Enough(gang, one);
  });
}

std::string MissingText(const Nodes& nodes, const GangRequest& request) {
  std::vector<std::string> missing;
  const bool gpus = WantsGpus(nodes, request);
  const int workers = CountOf(WorkersOf(nodes, request, gpus, Count::kFree), request);
  const int least = Least(request);
  if (workers < least) {
    const absl::string_view kind = gpus ? "gpu " : request.device == "cpu" ? "cpu " : "";
    std::string what =
        request.device_indices.empty()
            ? absl::StrCat(request.devices_per_worker, " free ", kind,
                           request.devices_per_worker == 1 ? "device" : "devices")
            : absl::StrCat("free ", kind, "devices ", absl::StrJoin(request.device_indices, ","));
    missing.push_back(absl::StrCat("needs ", least, least == 1 ? " worker" : " workers", " with ",
                                   what, least == 1 ? "" : " each", ", ",
                                   FreeText(nodes, request, gpus)));
    if (const std::string why = gpus ? "" : NoCardsText(nodes, request); !why.empty()) {
      absl::StrAppend(&missing.back(), " (as for GPUs, ", why, ")");
    }
    for (const Node& node : nodes) {
      if (!gpus || !node.takes_work || node.no_gpu.empty()) continue;
      absl::StrAppend(&missing.back(), " (worker ", node.name, " has none: ", node.no_gpu, ")");
      break;  // as a rule it is the same on all
    }
  }
  const int shards = static_cast<int>(ShardsOf(nodes, request).size());
  if (shards < request.num_shards) {
    missing.push_back(absl::StrCat("needs ", request.num_shards,
                                   request.num_shards == 1 ? " param_store" : " param_stores", ", ",
                                   shards, shards == 1 ? " is there" : " are there"));
  }
  if (missing.empty()) return VersionsText(nodes, request, gpus);
  return absl::StrJoin(missing, "; ");
}

std::string KindText(const Nodes& nodes, const GangRequest& request, bool on_gpus) {
  if (on_gpus) return "GPUs";
  const std::string why = NoCardsText(nodes, request);
  return why.empty() ? "CPUs" : absl::StrCat("CPUs (", why, ")");
}

}  // namespace capstan::coordinator::scheduler
