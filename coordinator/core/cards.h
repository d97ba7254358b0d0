// The cards of hosts: a card is known by its host and its UUID, whichever nodes offer it.
#ifndef CAPSTAN_COORDINATOR_CORE_CARDS_H_
#define CAPSTAN_COORDINATOR_CORE_CARDS_H_

#include <map>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "coordinator/core/node_table.h"

namespace capstan::coordinator::core {

bool IsCpu(const node::v1::Device& device);

// The CPUs of a worker that offers cards, as long as nobody holds them: no capacity of a cluster of
// cards, or one that is full would look as if it were not.
bool IsSpare(const Node& node, int device);

// Who holds which cards, so that no two workers compute on one. A device without a UUID (a CPU, or
// of an older worker) is never taken here: its slot alone says whether it is held. Nor is one that
// the same node offers twice: whoever started it so wants two devices of one card. Borrows the
// nodes' texts.
class HeldCards {
 public:
  HeldCards() = default;  // nobody holds any
  // Slots of nodes that are not lost.
  explicit HeldCards(const NodeTable& nodes);

  // By another node than this one.
  bool Taken(const Node& node, int device) const;
  void Take(const Node& node, int device);

 private:
  using Card = std::pair<absl::string_view, absl::string_view>;  // host, UUID
  std::map<Card, absl::string_view> holder_;                     // name of the node
};

// The sentence to tell where `node` offers cards which another node offers too; empty: it does not.
// Containers of one machine have host names of their own, so the UUID alone counts here. Nodes that
// are lost are nobody's concern. Takes as long as the node has cards, however many nodes there are.
std::string SharedCardsText(const NodeTable& nodes, const Node& node);

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_CARDS_H_
