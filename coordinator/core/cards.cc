#include "coordinator/core/cards.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace capstan::coordinator::core {

bool IsCpu(const node::v1::Device& device) {
  return device.name() == "cpu" || absl::StartsWith(device.name(), "cpu:");
}

bool IsSpare(const Node& node, int device) {
  const auto& devices = node.reg().devices();
  return IsCpu(devices[device]) && node.slots()[static_cast<size_t>(device)].empty() &&
         !std::all_of(devices.begin(), devices.end(), IsCpu);
}

std::string SharedCardsText(const NodeTable& nodes, const Node& node) {
  if (node.lost()) return "";
  std::vector<std::string> devices;
  const Node* other = nullptr;
  for (const node::v1::Device& device : node.reg().devices()) {
    if (device.uuid().empty()) continue;
    const std::set<std::string>* const offering = nodes.Offering(device.uuid());
    if (offering == nullptr) continue;
    for (const std::string& name : *offering) {
      const Node* const by = nodes.Find(name);
      if (by == nullptr || by == &node || by->lost()) continue;
      devices.push_back(device.name());
      if (other == nullptr) other = by;
      break;
    }
  }
  if (other == nullptr) return "";
  return absl::StrCat(
      absl::StrJoin(devices, ", "), devices.size() == 1 ? " is a card" : " are cards",
      " that worker ", other->name(), " on host ", other->host(),
      " offers too. One worker with --devices auto is enough for a host; of several, each wants "
      "cards of its own (--devices cuda:0)");
}

}  // namespace capstan::coordinator::core
