// The job that one process trains to the same bits as a job on many.
#ifndef CAPSTAN_CLIENT_REFERENCE_SPEC_H_
#define CAPSTAN_CLIENT_REFERENCE_SPEC_H_

#include "absl/status/statusor.h"
#include "capstan/job/v1/job_service.pb.h"
#include "client/exit_codes.h"

namespace capstan::client {

// The resolved spec of `job` for one worker with one device and no shard: the same lanes, batch and
// numbers, nothing saved but the last version, no limits. FailedPrecondition: something outside of
// the spec decided the job's numbers (an order that changed its learning rate), or it is not
// resolved.
absl::StatusOr<job::v1::JobSpec> ReferenceSpec(const job::v1::Job& job);

// What `verify` ends with: kExitDone where both came to the same weights and used the same number of
// samples, else kExitDifferent.
ExitCode ExitCodeOfComparison(const job::v1::Job& job, const job::v1::Job& reference);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_REFERENCE_SPEC_H_
