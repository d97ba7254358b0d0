#include "client/text/reference_spec.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::client {

namespace {

// With recovery.residuals: drop, what compressed gradients leave out is lost if lanes move, and with
// every lineage. The spec does not say at which step that was.
absl::Status CheckResiduals(const job::v1::Job& job) {
  const job::v1::JobSpec& spec = job.resolved().spec();
  if (!training::spec::HasErrorFeedback(spec) || training::spec::KeepsResiduals(spec)) {
    return absl::OkStatus();
  }
  const auto lost = [&](absl::string_view when) {
    return absl::FailedPreconditionError(absl::StrCat(
        job.job_id(), " compresses gradients (", spec.kvstore().gradient_compression().type(),
        "), and what they had left out was lost when ", when,
        ", so its spec does not determine the result"));
  };
  if (job.lineage() > 1) return lost("the job went back to a checkpoint");
  // Whether lanes moved is not certain: of many events, the middle ones are gone.
  if (job.generation() > 1) return lost("its tasks changed");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<job::v1::JobSpec> ReferenceSpec(const job::v1::Job& job) {
  if (!job.has_resolved()) {
    return absl::FailedPreconditionError(absl::StrCat(job.job_id(), " has never started"));
  }
  for (const job::v1::Event& event : job.events()) {
    if (event.type() != "OrderApplied" || !absl::StrContains(event.message(), "learning rate")) {
      continue;
    }
    return absl::FailedPreconditionError(
        absl::StrCat(job.job_id(),
                     " was changed while it ran, so its spec alone does not determine "
                     "the result: ",
                     event.message()));
  }
  const job::v1::ResolvedSpec& resolved = job.resolved();
  job::v1::JobSpec spec = resolved.spec();
  if (training::spec::IsAsynchronous(spec) && resolved.lanes() > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat(job.job_id(), " was asynchronous (", spec.kvstore().type(), ") with ",
                     resolved.lanes(), " lanes, so its spec does not determine the result"));
  }
  if (absl::Status status = CheckResiduals(job); !status.ok()) return status;
  auto& resources = *spec.mutable_resources();
  resources.set_num_workers(1);
  resources.set_gpus_per_worker(1);
  resources.set_num_shards(1);
  resources.set_lanes(resolved.lanes() / training::spec::AccumulateSteps(spec));
  resources.clear_min_workers();
  resources.clear_devices();
  // Other devices give other bits. A coordinator that does not name the device is an old one, which
  // knew only CPUs unless the job was for GPUs.
  if (!job.device().empty()) resources.set_device(job.device());
  if (resources.device() == "auto") resources.set_device("cpu");
  spec.mutable_kvstore()->set_type("local");
  spec.mutable_kvstore()->clear_max_staleness();
  spec.mutable_training()->set_global_batch_size(resolved.global_batch() /
                                                 training::spec::StepBatches(spec));
  spec.mutable_checkpoint()->Clear();
  spec.mutable_checkpoint()->set_every_seconds(0);  // never
  spec.clear_limits();
  const bool keeps_residuals = training::spec::KeepsResiduals(spec);
  spec.clear_recovery();
  if (training::spec::HasErrorFeedback(spec)) {
    spec.mutable_recovery()->set_residuals(keeps_residuals ? "rollback" : "drop");
  }
  return spec;
}

ExitCode ExitCodeOfComparison(const job::v1::Job& job, const job::v1::Job& reference) {
  return job.weights_sha256() == reference.weights_sha256() &&
                 job.samples_used() == reference.samples_used()
             ? kExitDone
             : kExitDifferent;
}

}  // namespace capstan::client
