// The rules that a job specification must satisfy before any process acts on it, whoever wrote it.
#ifndef CAPSTAN_TRAINING_SPEC_VALIDATE_H_
#define CAPSTAN_TRAINING_SPEC_VALIDATE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "capstan/job/v1/job_spec.pb.h"

namespace capstan::training::spec {

struct Violation {
  std::string path;     // 'training.optimizer.learning_rate'
  std::string message;  // the whole sentence: path, value, limit
  bool alone = false;   // the value is wrong whatever the other keys are
};

// Every rule that needs no data set. Allocates nothing that depends on a number in the spec.
std::vector<Violation> Validate(const job::v1::JobSpec& spec);

// The same as one status: InvalidArgument with the sentences joined by "; ".
absl::Status ValidateSpec(const job::v1::JobSpec& spec);

// Fills in every default that needs no data set. The spec must be valid.
void FillDefaults(job::v1::JobSpec& spec);

// Fills in the defaults that version 0.1.0 had, with its values. Every resolved spec has these
// fields set, whichever version made it. Never extend this function and never change a value. A
// field that came later is not set in resolved specs of earlier versions, and an unset field means
// what those versions did.
void FillFirstDefaults(job::v1::JobSpec& spec);

// "lenet"; "graph" for a network that the job file defines.
std::string ModelTitle(const job::v1::Model& model);

// Every failure reason of docs/interface.md section 1.
const std::vector<std::string>& FailureReasons();

// Devices of the whole job: num_workers x gpus_per_worker. The spec must be valid. Unset fields
// count with their defaults.
int64_t DeviceCount(const job::v1::JobSpec& spec);

// Samples of a batch over all workers. Same conditions as DeviceCount.
int64_t GlobalBatch(const job::v1::JobSpec& spec);

// kvstore `dist_async` in any spelling: shards apply the gradient of each lane by itself. True or
// false for any spec.
bool IsAsynchronous(const job::v1::JobSpec& spec);

// The targets of samples are numbers, not classes: the loss is mean_squared_error, by the key or as
// the last node of model.graph. True or false for any spec.
bool HasNumericTargets(const job::v1::JobSpec& spec);

// Gradients are encoded on their way to where they are added up. True or false for any spec.
bool IsCompressed(const job::v1::JobSpec& spec);

// The encoding has error feedback: 2bit, 1bit or top_k. True or false for any spec.
bool HasErrorFeedback(const job::v1::JobSpec& spec);

// recovery.residuals is rollback: checkpoints have what error feedback has left out, and a lane
// never changes its owner inside a lineage. False for any spec that does not say so, as the resolved
// specs of earlier versions.
bool KeepsResiduals(const job::v1::JobSpec& spec);

// Batches whose gradients are summed before one update: training.accumulate_steps; at least 1 for
// any spec.
int32_t AccumulateSteps(const job::v1::JobSpec& spec);

// kvstore.update_on_kvstore is false, and there are shards: workers update replicas, too.
bool WorkersUpdate(const job::v1::JobSpec& spec);

// Steps that a lane makes by itself between two exchanges, each on its part of a batch:
// kvstore.local_steps; at least 1 for any spec.
int32_t LocalSteps(const job::v1::JobSpec& spec);

// Batches of a step: AccumulateSteps x LocalSteps, of which one at most is above 1 in a valid spec.
int64_t StepBatches(const job::v1::JobSpec& spec);

// Samples of a step: StepBatches x GlobalBatch. Same conditions as DeviceCount.
int64_t StepSamples(const job::v1::JobSpec& spec);

// The default of resources.lanes, which are those of a batch; a step has AccumulateSteps times as
// many. It is the largest power of two up to 8 that leaves each lane 16 samples, so that the bits
// do not depend on the number of devices. It is one lane per device if there are more devices than
// that, if an operator couples the samples of a lane, if the job asks for GPUs (there each lane is
// a pass of its own), if lanes have weights, if the job is asynchronous, if it compresses gradients,
// and if lanes make steps of their own. Same conditions as DeviceCount.
int32_t DefaultLanes(const job::v1::JobSpec& spec);

}  // namespace capstan::training::spec

#endif  // CAPSTAN_TRAINING_SPEC_VALIDATE_H_
