// The description of one job for people, with the most important lines last.
#ifndef CAPSTAN_CLIENT_TEXT_DESCRIBE_TEXT_H_
#define CAPSTAN_CLIENT_TEXT_DESCRIBE_TEXT_H_

#include <string>

#include "capstan/job/v1/job_service.pb.h"
#include "client/text/job_view.h"

namespace capstan::client {

// `style.width` 0: lines are not cut. The last lines are the state and, for a failed job, the first
// failure, which caused the others.
std::string DescribeText(const job::v1::Job& job, const ViewStyle& style);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_TEXT_DESCRIBE_TEXT_H_
