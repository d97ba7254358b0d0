// A job's durable facts: the one place that says which fields of a Job outlive the
// coordinator. A field that a restart needs, and that no report would bring back, has a line in each of
// the two functions, and its place in coordinator/v1/durable.proto.
#ifndef CAPSTAN_COORDINATOR_CORE_DURABLE_JOB_H_
#define CAPSTAN_COORDINATOR_CORE_DURABLE_JOB_H_

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "capstan/coordinator/v1/durable.pb.h"
#include "coordinator/core/job.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

// Equal facts give equal bytes when serialized. `now`: of the core.
v1::DurableJob ToDurable(const Job& job, absl::Duration now);

// What must be saved at once when it has changed: all but `progress`, except for its skipped steps.
v1::DurableJob FactsOf(const Job& job);
// The same of what was saved, serialized.
std::string FactsOf(const v1::DurableJob& durable);

// The job as it was when it was saved, at a coordinator whose time is `now`: no node was heard yet,
// and what was under way (a manifest, orders sent) begins again. DataLoss: the bytes are no job.
absl::StatusOr<std::unique_ptr<Job>> FromDurable(const v1::DurableJob& durable,
                                                 const std::map<int64_t, job::v1::Event>& events,
                                                 const CoreOptions& options, absl::Duration now,
                                                 absl::Time wall);

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_DURABLE_JOB_H_
