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
// (Check, which looks at names alone), and, as far as it exists on this host, by what the kernel says
// (CheckLinks, services/files/beneath.h). Threads: const methods may be called from many threads.
class PathPolicy {
 public:
  // A path of a job that lies under roots by its name.
  struct Claim {
    std::string field;               // "data.uri"
    std::string uri;                 // as the job has it
    std::string path;                // absolute
    std::string flag;                // "--data-root"
    std::vector<std::string> roots;  // those that it may lie under
  };

  // file:// URIs or absolute paths. InvalidArgument, naming the flag: another scheme, or a relative
  // path.
  static absl::StatusOr<PathPolicy> Create(const std::vector<std::string>& data_roots,
                                           const std::vector<std::string>& checkpoint_roots);

  // What the spec names outside of the roots: data.uri and model.initial_weights outside of the
  // data roots, checkpoint.storage_path outside of the checkpoint roots. Initial weights that are a
  // checkpoint may lie in either; whose it is, the core knows. Touches no disk. `claims`, where it is
  // not null, gets what is left to be checked by CheckLinks.
  std::vector<services::FieldViolation> Check(const job::v1::JobSpec& spec,
                                              std::vector<Claim>* claims = nullptr) const;

  struct Found {
    std::vector<services::FieldViolation> violations;
    // Where links in the path of the initial weights, or in their folder, lead to. Whose that is, the
    // core knows.
    std::vector<std::string> weights_at;
  };
  // What the kernel says: a link that leads out of the roots; a storage_path that lies in a folder
  // of checkpoints, so in that of another job. Blocks for as long as the disk does.
  static Found CheckLinks(const Claim& claim);

  // Whether a path lies under a data root by its name.
  bool IsData(const std::string& path) const;
  const std::vector<std::string>& data_roots() const { return data_roots_; }
  const std::vector<std::string>& checkpoint_roots() const { return checkpoint_roots_; }

 private:
  std::vector<std::string> data_roots_;
  std::vector<std::string> checkpoint_roots_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_PATH_POLICY_H_
