// A job as people see it.
#ifndef CAPSTAN_COORDINATOR_CORE_JOB_PROTO_H_
#define CAPSTAN_COORDINATOR_CORE_JOB_PROTO_H_

#include "capstan/job/v1/job_service.pb.h"
#include "coordinator/core/job.h"

namespace capstan::coordinator::core {

// `with_history`: with its epochs and its events. Of the lost workers it has the newest.
job::v1::Job ToProto(const Job& job, bool with_history);

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_JOB_PROTO_H_
