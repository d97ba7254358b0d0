// A job as programs read it: docs/interface.md, "What a program reads".
#ifndef CAPSTAN_CLIENT_JOB_JSON_H_
#define CAPSTAN_CLIENT_JOB_JSON_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "capstan/job/v1/job_service.pb.h"

namespace capstan::client {

// One line of JSON: every field present, integers as numbers, enums without prefix, a number that
// is missing or not finite as null. Fields may be added, never taken away.
std::string JobJson(const job::v1::Job& job);
// The same with `events`, `spec` (as the person wrote it) and `resolved` (null before admission).
std::string DescriptionJson(const job::v1::Job& job);
// An array of jobs; of a list, without epochs.
std::string JobListJson(const std::vector<job::v1::Job>& jobs);

std::string EventJson(const std::string& job_id, const job::v1::Event& event);
// `role`: worker, param_store or coordinator. `dropped`: older lines that are gone.
std::string LogJson(const job::v1::StreamLogsResponse& response);
std::string CheckpointJson(const job::v1::SavedCheckpoint& checkpoint);
std::string CheckpointListJson(const std::vector<job::v1::SavedCheckpoint>& checkpoints);
std::string NodeListJson(const std::vector<job::v1::NodeInfo>& nodes);

// "SUCCEEDED" for JOB_STATE_SUCCEEDED.
std::string StateName(common::v1::JobState state);
// "worker" for ROLE_WORKER.
std::string RoleName(common::v1::Role role);
// "RUNNING" to its state, in upper or lower case. InvalidArgument: no state; names them all.
absl::StatusOr<common::v1::JobState> ReadState(const std::string& text);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_JOB_JSON_H_
