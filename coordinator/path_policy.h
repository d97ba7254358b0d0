// Which folders a job may read its data from and write its outputs to.
#ifndef CAPSTAN_COORDINATOR_PATH_POLICY_H_
#define CAPSTAN_COORDINATOR_PATH_POLICY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "services/status/status.h"

namespace capstan::coordinator {

// The roots that the operator allowed. A path lies under a root by its components, without "..",
// and, as far as it exists on this host, by what the kernel says (services/files/beneath.h). Threads: const
// methods may be called from many threads.
class PathPolicy {
 public:
  // file:// URIs or absolute paths. InvalidArgument, naming the flag: another scheme, or a relative
  // path.
  static absl::StatusOr<PathPolicy> Create(const std::vector<std::string>& data_roots,
                                           const std::vector<std::string>& checkpoint_roots);

  // What the spec names outside of the roots: data.uri and model.initial_weights outside of the
  // data roots, checkpoint.storage_path outside of the checkpoint roots.
  std::vector<services::FieldViolation> Check(const job::v1::JobSpec& spec) const;

  const std::vector<std::string>& data_roots() const { return data_roots_; }
  const std::vector<std::string>& checkpoint_roots() const { return checkpoint_roots_; }

 private:
  std::vector<std::string> data_roots_;
  std::vector<std::string> checkpoint_roots_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_PATH_POLICY_H_
