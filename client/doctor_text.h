// What `capstan doctor` makes of what the cluster says: findings, tables, JSON. Pure text.
#ifndef CAPSTAN_CLIENT_DOCTOR_TEXT_H_
#define CAPSTAN_CLIENT_DOCTOR_TEXT_H_

#include <string>
#include <vector>

#include "capstan/job/v1/job_service.pb.h"

namespace capstan::client {

// How this command met the coordinator.
struct CoordinatorLook {
  std::string address;
  std::string client_version;
  double round_trip_seconds = 0;
  double ahead_seconds = 0;  // of the coordinator's clock; known to half the round trip
};

// Something that is wrong, or may be. The sentence says what to do.
struct Finding {
  bool problem = true;  // false: a note
  // CoordinatorUnreachable, NoWorker, NodeLost, NodeSilent, Version, Clock, ShardUnreachable,
  // PairUnreachable, ShardRefuses, SlowPair, Folder, DiskFull, Device.
  std::string kind;
  std::string subject;  // whom it is about: a node, "coordinator", or "w1 -> s0"
  std::string sentence;
};

// Problems first, then notes; each by the order of the nodes.
std::vector<Finding> FindingsOf(const job::v1::DiagnoseResponse& cluster,
                                const CoordinatorLook& look);
// True: one of them is a problem.
bool AnyProblem(const std::vector<Finding>& findings);

// Tables of nodes, pairs and folders, findings last. `width` as in TextTable; sentences are whole.
std::string DoctorText(const job::v1::DiagnoseResponse& cluster, const CoordinatorLook& look,
                       const std::vector<Finding>& findings, int width);
// "problem  kind  sentence", a line each, or one that nothing was found.
std::string FindingsText(const std::vector<Finding>& findings);
// One object: coordinator, nodes, pairs, folders, findings; `cluster` null: findings alone, the
// rest empty or null. `seconds`: what it took.
std::string DoctorJson(const job::v1::DiagnoseResponse* cluster, const CoordinatorLook& look,
                       const std::vector<Finding>& findings, double seconds);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_DOCTOR_TEXT_H_
