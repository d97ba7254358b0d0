// A job as programs read it: docs/interface.md, "What a program reads".
#ifndef CAPSTAN_CLIENT_JOB_JSON_H_
#define CAPSTAN_CLIENT_JOB_JSON_H_

#include <string>

#include "absl/strings/string_view.h"
#include "capstan/job/v1/job_service.pb.h"

namespace capstan::client {

// One line of JSON: every field present, integers as numbers, enums without prefix, a number that
// is missing or not finite as null. Fields may be added, never taken away.
std::string JobJson(const job::v1::Job& job);

// "SUCCEEDED" for JOB_STATE_SUCCEEDED.
std::string StateName(common::v1::JobState state);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_JOB_JSON_H_
