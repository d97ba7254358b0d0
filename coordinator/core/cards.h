// The cards of hosts: a card is known by its host and its UUID, whichever nodes offer it.
#ifndef CAPSTAN_COORDINATOR_CORE_CARDS_H_
#define CAPSTAN_COORDINATOR_CORE_CARDS_H_

#include <string>

#include "coordinator/core/node_table.h"

namespace capstan::coordinator::core {

bool IsCpu(const node::v1::Device& device);

// True for the CPUs of a worker that offers cards, as long as no job holds them. They do not count as
// capacity of a cluster of cards: a full one would look as if it were not.
bool IsSpare(const Node& node, int device);

// The sentence to tell where `node` offers cards which another node offers too; empty: it does not.
// Containers of one machine have host names of their own, so the UUID alone counts here. Lost
// nodes do not count. The time grows with the cards of the node, not with the number of nodes.
std::string SharedCardsText(const NodeTable& nodes, const Node& node);

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_CARDS_H_
