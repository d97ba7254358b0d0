// What the scheduler is told: jobs and nodes as its plain data.
#ifndef CAPSTAN_COORDINATOR_CORE_SCHEDULING_H_
#define CAPSTAN_COORDINATOR_CORE_SCHEDULING_H_

#include <map>
#include <set>
#include <string>

#include "capstan/job/v1/job_spec.pb.h"
#include "coordinator/core/node_table.h"
#include "coordinator/scheduler/snapshot.h"

namespace capstan::coordinator::core {

// What a valid spec asks for, defaults filled in.
scheduler::GangRequest RequestOf(const job::v1::JobSpec& spec);

// Borrows the texts of `nodes`: valid until these change.
scheduler::Nodes NodesOf(const NodeTable& nodes);

// By job, the nodes that still hold something of an earlier gang of it. It would be taken for what they
// hold of the new gang: of another resolved spec, perhaps.
std::map<std::string, std::set<std::string>> StraysOf(const NodeTable& nodes);

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_SCHEDULING_H_
