#include "coordinator/path_policy.h"

#include "absl/strings/str_cat.h"
#include "services/files/beneath.h"
#include "training/codec/local_uri.h"

namespace capstan::coordinator {
namespace {

constexpr char kDataRoot[] = "--data-root";
constexpr char kCheckpointRoot[] = "--checkpoint-root";

absl::Status ReadRoots(const char* flag, const std::vector<std::string>& uris,
                       std::vector<std::string>* roots) {
  for (const std::string& uri : uris) {
    const absl::StatusOr<std::string> path = training::LocalPath(uri);
    if (!path.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path.status().message()));
    }
    if (path->empty() || (*path)[0] != '/') {
      return absl::InvalidArgumentError(absl::StrCat(flag, ": want an absolute folder, got ", uri));
    }
    roots->push_back(*path);
  }
  return absl::OkStatus();
}

void CheckOne(const std::string& field, const std::string& uri,
              const std::vector<std::string>& roots, const char* flag,
              std::vector<services::FieldViolation>* violations) {
  if (uri.empty()) return;
  const absl::StatusOr<std::string> path = training::LocalPath(uri);
  if (!path.ok()) {
    violations->push_back({field, absl::StrCat(field, ": ", path.status().message())});
    return;
  }
  if (path->empty() || (*path)[0] != '/') {
    violations->push_back({field, absl::StrCat(field, ": want an absolute path, got ", uri)});
    return;
  }
  if (services::LiesBeneath(*path, roots)) return;
  const absl::string_view escapes =
      absl::string_view(flag) == kDataRoot ? "dataset path escapes the data root: it " : "";
  violations->push_back({field, absl::StrCat(field, ": ", uri, ": ", escapes, "lies under no ",
                                             flag, " of the coordinator")});
}

}  // namespace

absl::StatusOr<PathPolicy> PathPolicy::Create(const std::vector<std::string>& data_roots,
                                              const std::vector<std::string>& checkpoint_roots) {
  PathPolicy policy;
  absl::Status status = ReadRoots(kDataRoot, data_roots, &policy.data_roots_);
  if (status.ok()) {
    status = ReadRoots(kCheckpointRoot, checkpoint_roots, &policy.checkpoint_roots_);
  }
  if (!status.ok()) return status;
  return policy;
}

std::vector<services::FieldViolation> PathPolicy::Check(const job::v1::JobSpec& spec) const {
  std::vector<services::FieldViolation> violations;
  CheckOne("data.uri", spec.data().uri(), data_roots_, kDataRoot, &violations);
  CheckOne("model.initial_weights", spec.model().initial_weights(), data_roots_, kDataRoot,
           &violations);
  CheckOne("checkpoint.storage_path", spec.checkpoint().storage_path(), checkpoint_roots_,
           kCheckpointRoot, &violations);
  return violations;
}

}  // namespace capstan::coordinator
