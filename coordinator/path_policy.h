// The folders from which a job may read its data, and to which it may write its outputs.
#ifndef CAPSTAN_COORDINATOR_PATH_POLICY_H_
#define CAPSTAN_COORDINATOR_PATH_POLICY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "services/status/status.h"

namespace capstan::coordinator {

// The roots that the operator allowed. A path is under a root by its components, without ".."
// (Check, which looks only at names), and as far as it exists on this host also by the kernel
// (CheckLinks, services/files/beneath.h). Const methods may be called from many threads.
class PathPolicy {
 public:
  // A path of a job that is under roots by its name.
  struct Claim {
    std::string field;               // "data.uri"
    std::string uri;                 // as in the job file
    std::string path;                // absolute
    std::string flag;                // "--data-root"
    std::vector<std::string> roots;  // the roots that are allowed for it
  };

  // Takes file:// URIs or absolute paths. InvalidArgument names the flag: another scheme, or a
  // relative path.
  static absl::StatusOr<PathPolicy> Create(const std::vector<std::string>& data_roots,
                                           const std::vector<std::string>& checkpoint_roots);

  // The paths of the spec outside of the roots: data.uri and model.initial_weights outside of the
  // data roots, and checkpoint.storage_path outside of the checkpoint roots. Initial weights that
  // are a checkpoint may be under either; the core knows whose it is. Touches no disk. If `claims`
  // is not null, it gets the paths that CheckLinks still has to check.
  std::vector<services::FieldViolation> Check(const job::v1::JobSpec& spec,
                                              std::vector<Claim>* claims = nullptr) const;

  struct Found {
    std::vector<services::FieldViolation> violations;
    // The targets of links in the path of the initial weights or in their folder. The core knows
    // whose they are.
    std::vector<std::string> weights_at;
  };
  // Asks the kernel. Finds a link that leads out of the roots, and a storage_path inside a folder
  // of checkpoints, which is another job's. Blocks while the disk does.
  static Found CheckLinks(const Claim& claim);

  // Whether a path is under a data root by its name.
  bool IsData(const std::string& path) const;
  const std::vector<std::string>& data_roots() const { return data_roots_; }
  const std::vector<std::string>& checkpoint_roots() const { return checkpoint_roots_; }

 private:
  std::vector<std::string> data_roots_;
  std::vector<std::string> checkpoint_roots_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_PATH_POLICY_H_
