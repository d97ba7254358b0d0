// The job that one process trains to the same bits as a job on many processes.
#ifndef CAPSTAN_CLIENT_TEXT_REFERENCE_SPEC_H_
#define CAPSTAN_CLIENT_TEXT_REFERENCE_SPEC_H_

#include "absl/status/statusor.h"
#include "capstan/job/v1/job_service.pb.h"
#include "client/text/exit_codes.h"

namespace capstan::client {

// The resolved spec of `job` for one worker with one device and no shard, with the same lanes,
// batch and numbers. Only the last version is saved, and there are no limits. FailedPrecondition:
// the job is not resolved, or something outside of the spec decided its numbers (an order that
// changed the learning rate, the order of contributions to an asynchronous job with several lanes).
absl::StatusOr<job::v1::JobSpec> ReferenceSpec(const job::v1::Job& job);

// The exit code of `verify`: kExitDone if both jobs have the same weights and used the same number
// of samples, else kExitDifferent.
ExitCode ExitCodeOfComparison(const job::v1::Job& job, const job::v1::Job& reference);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_TEXT_REFERENCE_SPEC_H_
