#include "coordinator/path_policy.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/stored_file.h"
#include "services/files/beneath.h"
#include "services/files/files.h"
#include "training/codec/local_uri.h"

namespace capstan::coordinator {
namespace {

constexpr char kStoragePath[] = "checkpoint.storage_path";
constexpr char kInitialWeights[] = "model.initial_weights";
constexpr char kDataRoot[] = "--data-root";
constexpr char kCheckpointRoot[] = "--checkpoint-root";
constexpr char kDataOrCheckpointRoot[] = "--data-root or --checkpoint-root";

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

services::FieldViolation Outside(const PathPolicy::Claim& claim) {
  const absl::string_view escapes =
      claim.flag == kDataRoot ? "dataset path escapes the data root: it " : "";
  return {claim.field, absl::StrCat(claim.field, ": ", claim.uri, ": ", escapes,
                                    "is not under any ", claim.flag, " of the coordinator")};
}

void CheckOne(const std::string& field, const std::string& uri,
              const std::vector<std::string>& roots, const char* flag,
              std::vector<services::FieldViolation>* violations,
              std::vector<PathPolicy::Claim>* claims) {
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
  PathPolicy::Claim claim{.field = field, .uri = uri, .path = *path, .flag = flag, .roots = {}};
  for (const std::string& root : roots) {
    if (services::PathBelow(*path, root).has_value()) claim.roots.push_back(root);
  }
  if (claim.roots.empty()) {
    violations->push_back(Outside(claim));
  } else if (claims != nullptr) {
    claims->push_back(std::move(claim));
  }
}

constexpr int kMostEntries = 10000;  // entries read of a folder; a job's own has few

// `<lineage>-<step>`, the form of checkpoint names.
bool IsCheckpointName(absl::string_view name) {
  const size_t dash = name.find('-');
  if (dash == name.npos || dash == 0 || dash + 1 == name.size()) return false;
  const auto digits = [](absl::string_view text) {
    return text.find_first_not_of("0123456789") == text.npos;
  };
  return digits(name.substr(0, dash)) && digits(name.substr(dash + 1));
}

// The first checkpoint in the folder. Empty: there is none, or no folder.
std::string CheckpointIn(const std::string& root, const std::string& below) {
  const int fd = services::OpenBeneath(root, below, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return "";
  DIR* const folder = ::fdopendir(fd);
  if (folder == nullptr) {
    ::close(fd);
    return "";
  }
  std::string found;
  int left = kMostEntries;
  for (const dirent* entry = ::readdir(folder); entry != nullptr && left > 0;
       entry = ::readdir(folder), --left) {
    // A folder with such a name may also be a month.
    if (!IsCheckpointName(entry->d_name)) continue;
    const std::string manifest = absl::StrCat(entry->d_name, "/manifest.json");
    if (::faccessat(fd, manifest.c_str(), F_OK, 0) != 0) continue;
    found = entry->d_name;
    break;
  }
  ::closedir(folder);
  return found;
}

// False: the target of `path` cannot be found.
bool FollowLinks(const std::string& path, const std::vector<std::string>& roots,
                 std::vector<std::string>& places) {
  const std::optional<std::string> place = services::PlaceBeneath(path, roots);
  if (!place.has_value()) return false;
  if (services::PathBelow(path, "/") != services::PathBelow(*place, "/")) places.push_back(*place);
  return true;
}

// The files in a checkpoint's folder that may be links.
absl::Status ListLinks(const PathPolicy::Claim& claim, const std::string& path,
                       std::vector<std::string>& names) {
  int fd = -1;
  for (const std::string& root : claim.roots) {
    const std::optional<std::string> below = services::PathBelow(path, root);
    if (fd < 0 && below.has_value()) {
      fd = services::OpenBeneath(root, *below, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
  }
  // Another host may have what is missing on this one.
  if (fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == EACCES)) return absl::OkStatus();
  DIR* const folder = fd < 0 ? nullptr : ::fdopendir(fd);
  if (folder == nullptr) {
    const absl::Status status = services::ErrnoStatus(errno, "open", path);
    if (fd >= 0) ::close(fd);
    return status;
  }
  int left = kMostEntries;
  for (const dirent* entry = ::readdir(folder); entry != nullptr && left >= 0;
       entry = ::readdir(folder), --left) {
    if (entry->d_type == DT_REG) continue;
    const absl::string_view name = entry->d_name;
    if (name == "manifest.json" || IsTensorFileName(name)) names.emplace_back(name);
  }
  ::closedir(folder);
  if (left >= 0) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat(path, ": has more than ", kMostEntries, " entries, the limit"));
}

PathPolicy::Found FollowWeights(const PathPolicy::Claim& claim) {
  const auto refused = [&claim](absl::string_view why) {
    return PathPolicy::Found{{{claim.field, absl::StrCat(claim.field, ": ", claim.uri, ": ", why)}},
                             {}};
  };
  const auto nowhere = [&refused](const std::string& path) {
    return refused(absl::StrCat(path, ": a link leads nowhere, or out of the roots"));
  };
  PathPolicy::Found found;
  if (!FollowLinks(claim.path, claim.roots, found.weights_at)) return nowhere(claim.path);
  const std::string folder = training::CheckpointFolderIn(claim.path);
  if (folder.empty()) return found;
  std::vector<std::string> names;
  if (absl::Status status = ListLinks(claim, folder, names); !status.ok()) {
    return refused(status.message());
  }
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (!FollowLinks(path, claim.roots, found.weights_at)) return nowhere(path);
  }
  return found;
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

std::vector<services::FieldViolation> PathPolicy::Check(const job::v1::JobSpec& spec,
                                                        std::vector<Claim>* claims) const {
  std::vector<services::FieldViolation> violations;
  CheckOne("data.uri", spec.data().uri(), data_roots_, kDataRoot, &violations, claims);
  const std::string& weights = spec.model().initial_weights();
  const absl::StatusOr<std::string> path = training::LocalPath(weights);
  if (path.ok() && !training::CheckpointFolderIn(*path).empty()) {
    std::vector<std::string> roots = data_roots_;
    roots.insert(roots.end(), checkpoint_roots_.begin(), checkpoint_roots_.end());
    CheckOne(kInitialWeights, weights, roots, kDataOrCheckpointRoot, &violations, claims);
  } else {
    CheckOne(kInitialWeights, weights, data_roots_, kDataRoot, &violations, claims);
  }
  CheckOne(kStoragePath, spec.checkpoint().storage_path(), checkpoint_roots_, kCheckpointRoot,
           &violations, claims);
  return violations;
}

bool PathPolicy::IsData(const std::string& path) const {
  return std::any_of(data_roots_.begin(), data_roots_.end(), [&path](const std::string& root) {
    return services::PathBelow(path, root).has_value();
  });
}

PathPolicy::Found PathPolicy::CheckLinks(const Claim& claim) {
  if (!services::LiesBeneath(claim.path, claim.roots)) return {{Outside(claim)}, {}};
  if (claim.field == kInitialWeights) return FollowWeights(claim);
  if (claim.field != kStoragePath) return {};
  for (const std::string& root : claim.roots) {
    std::string below = *services::PathBelow(claim.path, root);
    // The root itself is the operator's, who has put everything there.
    while (below != ".") {
      if (const std::string saved = CheckpointIn(root, below); !saved.empty()) {
        return {{{claim.field,
                  absl::StrCat(claim.field, ": ", claim.uri, ": is in the folder of a job: ", root,
                               "/", below, " has checkpoint ", saved, "; choose another one")}},
                {}};
      }
      const size_t slash = below.rfind('/');
      below = slash == std::string::npos ? "." : below.substr(0, slash);
    }
  }
  return {};
}

}  // namespace capstan::coordinator
