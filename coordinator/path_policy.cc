#include "coordinator/path_policy.h"

#include <climits>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "training/codec/local_uri.h"
#include "training/spec/validate.h"

namespace capstan::coordinator {
namespace {

// Without empty and "." components and without a '/' at the end; "/" is "".
std::string Normal(const std::string& path) {
  std::string out;
  for (const absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    if (part != ".") absl::StrAppend(&out, "/", part);
  }
  return out;
}

bool Under(const std::string& path, const std::string& root) {
  return path == root || absl::StartsWith(path, absl::StrCat(root, "/"));
}

// The path with the links of its longest existing part followed.
std::string Resolved(const std::string& path) {
  std::string head = path;
  std::string tail;
  while (!head.empty()) {
    char real[PATH_MAX];
    if (::realpath(head.c_str(), real) != nullptr) return Normal(absl::StrCat(real, tail));
    const size_t slash = head.rfind('/');
    tail = absl::StrCat(head.substr(slash), tail);
    head.resize(slash);
  }
  return path;
}

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
    roots->push_back(Normal(*path));
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
  const std::string normal = Normal(*path);
  for (const std::string& root : roots) {
    if (Under(normal, root) && Under(Resolved(normal), Resolved(root))) return;
  }
  violations->push_back(
      {field, absl::StrCat(field, ": ", uri, " is under no ", flag, " of the coordinator")});
}

}  // namespace

absl::StatusOr<PathPolicy> PathPolicy::Create(const std::vector<std::string>& data_roots,
                                              const std::vector<std::string>& checkpoint_roots) {
  PathPolicy policy;
  absl::Status status = ReadRoots("--data-root", data_roots, &policy.data_roots_);
  if (status.ok()) {
    status = ReadRoots("--checkpoint-root", checkpoint_roots, &policy.checkpoint_roots_);
  }
  if (!status.ok()) return status;
  return policy;
}

std::vector<services::FieldViolation> PathPolicy::Check(const job::v1::JobSpec& spec) const {
  std::vector<services::FieldViolation> violations;
  CheckOne("data.uri", spec.data().uri(), data_roots_, "--data-root", &violations);
  CheckOne("model.initial_weights", spec.model().initial_weights(), data_roots_, "--data-root",
           &violations);
  CheckOne("checkpoint.storage_path", spec.checkpoint().storage_path(), checkpoint_roots_,
           "--checkpoint-root", &violations);
  return violations;
}

}  // namespace capstan::coordinator
