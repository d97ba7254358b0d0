// Findings, tables and JSON of `capstan doctor`, made from the cluster's answer. Pure text.
#ifndef CAPSTAN_CLIENT_TEXT_DOCTOR_TEXT_H_
#define CAPSTAN_CLIENT_TEXT_DOCTOR_TEXT_H_

#include <string>
#include <vector>

#include "capstan/job/v1/admin_service.pb.h"

namespace capstan::client {

// What this command measured of the coordinator.
struct CoordinatorLook {
  std::string address;
  std::string client_version;
  double round_trip_seconds = 0;
  double ahead_seconds = 0;  // of the coordinator's clock, within half the round trip
};

// Something that is or may be wrong. The sentence says what to do.
struct Finding {
  bool problem = true;  // false: a note
  // CoordinatorUnreachable, NoWorker, NodeLost, NodeSilent, Version, Clock, ShardUnreachable,
  // PairUnreachable, ShardRefuses, SlowPair, Folder, DiskFull, Device.
  std::string kind;
  std::string subject;  // what it is about: a node, "coordinator", or "w1 -> s0"
  std::string sentence;
};

// Problems first, then notes, each in the order of the nodes.
std::vector<Finding> FindingsOf(const job::v1::DiagnoseResponse& cluster,
                                const CoordinatorLook& look);
// True if a finding is a problem.
bool AnyProblem(const std::vector<Finding>& findings);

// Tables of nodes, pairs and folders, then the findings. `width` as in TextTable; sentences are not
// cut.
std::string DoctorText(const job::v1::DiagnoseResponse& cluster, const CoordinatorLook& look,
                       const std::vector<Finding>& findings, int width);
// A line "problem  kind  sentence" for each finding, or a line that there is none.
std::string FindingsText(const std::vector<Finding>& findings);
// One object with coordinator, nodes, pairs, folders and findings. If `cluster` is null, only the
// findings are set, and the rest is empty or null. `seconds`: how long the diagnosis took.
std::string DoctorJson(const job::v1::DiagnoseResponse* cluster, const CoordinatorLook& look,
                       const std::vector<Finding>& findings, double seconds);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_TEXT_DOCTOR_TEXT_H_
