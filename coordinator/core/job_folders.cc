#include "coordinator/core/job_folders.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "training/codec/local_uri.h"

namespace capstan::coordinator::core {
namespace {

// The folder of a file:// URI, or a plain path as it is; the validator has judged it.
std::string FolderOf(const std::string& uri) {
  constexpr char kScheme[] = "file://";
  return uri.rfind(kScheme, 0) == 0 ? uri.substr(sizeof(kScheme) - 1) : uri;
}
constexpr size_t kMaxShownId = 64;  // bytes shown of an unknown checkpoint's id
constexpr int kMaxListedIds = 20;

}  // namespace

std::string CheckpointFolder(const std::string& storage_path, int64_t lineage, int64_t step) {
  return absl::StrCat(storage_path, "/", lineage, "-", step);
}

absl::Status NoCheckpoint(const Job& job, absl::string_view checkpoint) {
  std::vector<std::string> ids;
  for (auto it = job.checkpoints().all().rbegin(); it != job.checkpoints().all().rend(); ++it) {
    if (ids.size() == kMaxListedIds) {
      ids.emplace_back("...");
      break;
    }
    ids.push_back(it->saved.id());
  }
  return absl::NotFoundError(
      absl::StrCat("job ", job.id(), " has no checkpoint ", checkpoint.substr(0, kMaxShownId),
                   ids.empty() ? " and no other one" : "; it has ", absl::StrJoin(ids, ", ")));
}

std::string JobFolders::StoragePath(const Job& job) const {
  return job.resolved().has_value() ? job.resolved()->storage_path()
                                    : absl::StrCat(StorageRoot(job.spec()), "/", job.id());
}

std::string JobFolders::StorageRoot(const job::v1::JobSpec& spec) const {
  const std::string& path = spec.checkpoint().storage_path();
  return path.empty() ? ctx_.options().storage_root : FolderOf(path);
}

std::string JobFolders::JobWhoseFolderHolds(const std::string& path) const {
  std::string above;
  for (const absl::string_view part : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    if (part == ".") continue;
    absl::StrAppend(&above, "/", part);
    const Job* const job = ctx_.jobs().Find(part);
    if (job == nullptr) continue;
    std::string folder;
    for (const absl::string_view its : absl::StrSplit(StoragePath(*job), '/', absl::SkipEmpty())) {
      if (its != ".") absl::StrAppend(&folder, "/", its);
    }
    if (folder == above) return job->id();
  }
  return "";
}

absl::Status JobFolders::CheckInitialWeights(const Submit& submit) const {
  const std::string& uri = submit.spec.model().initial_weights();
  if (uri.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> path = training::LocalPath(uri);
  if (!path.ok()) return path.status();
  for (const std::string& place : submit.weights_at) {
    if (absl::Status status = CheckLinkedWeights(submit, place); !status.ok()) return status;
  }
  const Job* const job = ctx_.jobs().Find(JobWhoseFolderHolds(*path));
  if (job == nullptr) {
    if (submit.caller.any_job || !ctx_.options().is_data || ctx_.options().is_data(*path)) {
      return absl::OkStatus();
    }
    return absl::PermissionDeniedError(
        absl::StrCat("model.initial_weights: ", uri,
                     ": is not below a --data-root, nor in the folder of a job that the "
                     "coordinator knows; only an admin may begin from it"));
  }
  if (absl::Status status = CheckOwner(*job, submit.caller); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("model.initial_weights: ", status.message()));
  }
  const std::string folder = training::CheckpointFolderIn(*path);
  if (folder.empty()) return absl::OkStatus();
  const std::string id = folder.substr(folder.rfind('/') + 1);
  if (job->checkpoints().Find(id) != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("model.initial_weights: ", NoCheckpoint(*job, id).message()));
}

// A link has led there. The folder of a job may have other names than the one on record, by links or
// by roots inside of each other: so all that has the id of a job in its path counts as that job's.
absl::Status JobFolders::CheckLinkedWeights(const Submit& submit, const std::string& place) const {
  const std::string what =
      absl::StrCat("model.initial_weights: ", submit.spec.model().initial_weights(),
                   ": a link leads to ", place);
  bool known = false;
  for (const absl::string_view part : absl::StrSplit(place, '/', absl::SkipEmpty())) {
    const Job* const job = ctx_.jobs().Find(part);
    if (job == nullptr) continue;
    known = true;
    if (absl::Status status = CheckOwner(*job, submit.caller); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
    }
  }
  if (known || submit.caller.any_job || !ctx_.options().is_data || ctx_.options().is_data(place)) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat(what,
                   ", which is not below a --data-root, nor in the folder of a job that the "
                   "coordinator knows; only an admin may begin from it"));
}

std::string JobFolders::WhoBeginsFrom(const Job& job, const std::string& checkpoint) const {
  for (const auto& entry : ctx_.jobs().with_weights()) {
    const Job& other = *entry.second;
    const std::string& weights = other.spec().model().initial_weights();
    if (other.ended() || other.checkpoints().Last() != nullptr) continue;
    if (!absl::StrContains(weights, checkpoint) || !absl::StrContains(weights, job.id())) continue;
    const absl::StatusOr<std::string> path = training::LocalPath(weights);
    if (!path.ok() || JobWhoseFolderHolds(*path) != job.id()) continue;
    // Of the checkpoint itself, or a file in its folder.
    const std::string folder = training::CheckpointFolderIn(*path);
    const std::string held = folder.empty() ? path->substr(0, path->rfind('/')) : folder;
    if (held.substr(held.rfind('/') + 1) == checkpoint) return other.id();
  }
  return "";
}

void JobFolders::RemoveDeleted(const Job& job) {
  for (const std::string& id : job.checkpoints().deleted()) {
    ctx_.Emit(RemoveCheckpoint{job.id(), StoragePath(job), id});
  }
}

}  // namespace capstan::coordinator::core
