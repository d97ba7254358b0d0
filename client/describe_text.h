// All about one job, for people: most important last.
#ifndef CAPSTAN_CLIENT_DESCRIBE_TEXT_H_
#define CAPSTAN_CLIENT_DESCRIBE_TEXT_H_

#include <string>

#include "capstan/job/v1/job_service.pb.h"
#include "client/job_view.h"

namespace capstan::client {

// `style.width` 0: lines are whole. The last lines are the state, and of a job that failed the
// first failure, which is the cause of the others.
std::string DescribeText(const job::v1::Job& job, const ViewStyle& style);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_DESCRIBE_TEXT_H_
