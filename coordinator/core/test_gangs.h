// The scheduler's answers about a table of nodes. For tests alone.
#ifndef CAPSTAN_COORDINATOR_CORE_TEST_GANGS_H_
#define CAPSTAN_COORDINATOR_CORE_TEST_GANGS_H_

#include <optional>
#include <string>

#include "coordinator/core/node_table.h"
#include "coordinator/core/scheduling.h"
#include "coordinator/scheduler/gang.h"

namespace capstan::coordinator::core {

using scheduler::GangRequest;

inline std::optional<scheduler::Gang> FindGang(const NodeTable& nodes, const GangRequest& request) {
  return scheduler::FindGang(NodesOf(nodes), request);
}
inline bool CouldFit(const NodeTable& nodes, const GangRequest& request) {
  return scheduler::CouldFit(NodesOf(nodes), request);
}
inline bool WantsGpus(const NodeTable& nodes, const GangRequest& request) {
  return scheduler::WantsGpus(NodesOf(nodes), request);
}
inline std::string MissingText(const NodeTable& nodes, const GangRequest& request) {
  return scheduler::MissingText(NodesOf(nodes), request);
}
inline std::string KindText(const NodeTable& nodes, const GangRequest& request, bool on_gpus) {
  return scheduler::KindText(NodesOf(nodes), request, on_gpus);
}

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_TEST_GANGS_H_
