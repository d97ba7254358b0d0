// Jobs as programs read them: docs/interface.md, "What a program reads".
#ifndef CAPSTAN_CLIENT_TEXT_JOB_JSON_H_
#define CAPSTAN_CLIENT_TEXT_JOB_JSON_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "capstan/job/v1/admin_service.pb.h"
#include "capstan/job/v1/job_service.pb.h"

namespace capstan::client {

// One line of JSON. Every field is present; integers are numbers, enums have no prefix, and a
// number that is missing or not finite is null. Fields may be added but never removed.
std::string JobJson(const job::v1::Job& job);
// The same with `events`, `spec` (as the person wrote it) and `resolved` (null before admission).
std::string DescriptionJson(const job::v1::Job& job);
// An array of jobs. Jobs from a list have no epochs.
std::string JobListJson(const std::vector<job::v1::Job>& jobs);

std::string EventJson(const std::string& job_id, const job::v1::Event& event);
// `role`: worker, param_store or coordinator. `dropped`: number of older lines that are lost.
std::string LogJson(const job::v1::StreamLogsResponse& response);
std::string CheckpointJson(const job::v1::SavedCheckpoint& checkpoint);
std::string CheckpointListJson(const std::vector<job::v1::SavedCheckpoint>& checkpoints);
std::string NodeListJson(const std::vector<job::v1::NodeInfo>& nodes);

// "SUCCEEDED" for JOB_STATE_SUCCEEDED.
std::string StateName(common::v1::JobState state);
// "worker" for ROLE_WORKER.
std::string RoleName(common::v1::Role role);
// The state of a name like "RUNNING", in upper or lower case. InvalidArgument: no such state; the
// message lists all.
absl::StatusOr<common::v1::JobState> ReadState(const std::string& text);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_TEXT_JOB_JSON_H_
