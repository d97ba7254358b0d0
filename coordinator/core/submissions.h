// Jobs that people submit and cancel.
#ifndef CAPSTAN_COORDINATOR_CORE_SUBMISSIONS_H_
#define CAPSTAN_COORDINATOR_CORE_SUBMISSIONS_H_

#include <random>
#include <string>

#include "absl/status/status.h"
#include "coordinator/core/core_context.h"
#include "coordinator/core/job.h"
#include "coordinator/core/job_folders.h"
#include "coordinator/core/job_run.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

// Not thread-safe. Borrows the parts that it is made of.
class Submissions {
 public:
  Submissions(CoreContext& ctx, JobFolders& folders, JobRun& run)
      : ctx_(ctx), folders_(folders), run_(run), random_(ctx.options().seed) {}

  void Handle(const Submit& submit);
  void Handle(const Cancel& cancel);
  // The job that this step has added, or null.
  Job* TakeSubmitted() { return std::exchange(submitted_, nullptr); }

 private:
  absl::Status Admit(const Submit& submit, job::v1::SubmitJobResponse* response);
  // An id that no job has had, as far as anybody knows.
  std::string NewJobId(const std::string& name);

  CoreContext& ctx_;
  JobFolders& folders_;
  JobRun& run_;
  std::mt19937_64 random_;
  Job* submitted_ = nullptr;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_SUBMISSIONS_H_
