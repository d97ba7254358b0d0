// Checkpoints that a person deletes, and those that jobs begin from and nobody may delete meanwhile.
//
// A deletion is durable before the answer goes out; the folder is removed behind that, and again after
// every restart until it is gone, so that what a person deleted never comes back.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "coordinator/core/core.h"
#include "training/codec/local_uri.h"

namespace capstan::coordinator::core {
namespace {

constexpr size_t kMaxShownId = 64;  // bytes of a checkpoint's id that nobody has
constexpr int kMaxListedIds = 20;

absl::Status Needed(const std::string& what, const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat(what, " is not deleted: ", why));
}

}  // namespace

absl::Status NoCheckpoint(const JobRecord& job, absl::string_view checkpoint) {
  std::vector<std::string> ids;
  for (auto it = job.manifests.rbegin(); it != job.manifests.rend(); ++it) {
    if (ids.size() == kMaxListedIds) {
      ids.emplace_back("...");
      break;
    }
    ids.push_back(it->saved.id());
  }
  return absl::NotFoundError(
      absl::StrCat("job ", job.id, " has no checkpoint ", checkpoint.substr(0, kMaxShownId),
                   ids.empty() ? " and no other one" : "; it has ", absl::StrJoin(ids, ", ")));
}

// A job that has not ended and has no checkpoint of its own yet, and so begins from this one, perhaps
// once more; empty: none.
std::string CoordinatorCore::WhoBeginsFrom(const JobRecord& job,
                                           const std::string& checkpoint) const {
  for (const auto& entry : by_sequence_) {
    const JobRecord& other = *entry.second;
    const std::string& weights = other.spec.model().initial_weights();
    if (weights.empty() || other.ended() || other.LastManifest() != nullptr) continue;
    if (!absl::StrContains(weights, checkpoint) || !absl::StrContains(weights, job.id)) continue;
    const absl::StatusOr<std::string> path = training::LocalPath(weights);
    if (!path.ok() || JobWhoseFolderHolds(*path) != job.id) continue;
    // Of the checkpoint itself, or a file in its folder.
    const std::string folder = training::CheckpointFolderIn(*path);
    const std::string held = folder.empty() ? path->substr(0, path->rfind('/')) : folder;
    if (held.substr(held.rfind('/') + 1) == checkpoint) return other.id;
  }
  return "";
}

void CoordinatorCore::Order(JobRecord& job, const job::v1::DeleteCheckpointRequest& request,
                            Reply& reply) {
  const std::string& id = request.checkpoint();
  const SavedManifest* const found = job.FindManifest(id);
  if (found == nullptr) {
    reply.status = NoCheckpoint(job, id);
    return;
  }
  if (job.unread) {
    reply.status = absl::UnavailableError(
        absl::StrCat("job ", job.id, ": the coordinator has not read its checkpoints yet"));
    return;
  }
  const std::string what = absl::StrCat("checkpoint ", id, " of job ", job.id);
  if (!job.ended()) {
    if (found == &job.manifests.back() || found == job.LastManifest()) {
      reply.status = Needed(what, "it is the newest, and the job has not ended");
      return;
    }
    if (id == job.base) {
      reply.status = Needed(what, "the job goes on from it, and has not ended");
      return;
    }
  }
  if (const std::string who = WhoBeginsFrom(job, id); !who.empty()) {
    reply.status = Needed(what, absl::StrCat("job ", who, " begins from it"));
    return;
  }
  job::v1::DeleteCheckpointResponse response;
  response.set_size_bytes(found->saved.size_bytes());
  const auto index = found - job.manifests.data();
  job.manifests.erase(job.manifests.begin() + index);
  job.checkpoint_uri = job.manifests.empty() ? "" : job.manifests.back().saved.uri();
  job.deleted.insert(id);
  job.AddEvent(wall_, "CheckpointDeleted", id);
  Changed(job);
  Emit(RemoveCheckpoint{job.id, StoragePath(job), id});
  reply.response = std::move(response);
}

void CoordinatorCore::Handle(const CheckpointRemoved& removed) {
  JobRecord* const job = FindJob(removed.job_id);
  if (job == nullptr || !removed.status.ok()) return;
  if (job->deleted.erase(removed.checkpoint) == 0) return;
  Changed(*job);
  if (job->ended()) expiry_at_ = now_;
}

void CoordinatorCore::RemoveDeleted(const JobRecord& job) {
  for (const std::string& id : job.deleted) {
    Emit(RemoveCheckpoint{job.id, StoragePath(job), id});
  }
}

// A link has led there. The folder of a job may have other names than the one on record, by links or
// by roots inside of each other: so all that has the id of a job in its path counts as that job's.
absl::Status CoordinatorCore::CheckLinkedWeights(const Submit& submit,
                                                 const std::string& place) const {
  const std::string what =
      absl::StrCat("model.initial_weights: ", submit.spec.model().initial_weights(),
                   ": a link leads to ", place);
  bool known = false;
  for (const absl::string_view part : absl::StrSplit(place, '/', absl::SkipEmpty())) {
    const JobRecord* const job = FindJob(part);
    if (job == nullptr) continue;
    known = true;
    if (absl::Status status = CheckOwner(*job, submit.caller); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
    }
  }
  if (known || submit.caller.any_job || !options_.is_data || options_.is_data(place)) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(
      absl::StrCat(what,
                   ", which lies under no --data-root, and in the folder of no job that the "
                   "coordinator knows; an admin may begin from it"));
}

// What lies in the folder of a job is its owner's, whichever roots it lies under. A checkpoint that
// lies under no data root must be of a job that is known.
absl::Status CoordinatorCore::CheckInitialWeights(const Submit& submit) const {
  const std::string& uri = submit.spec.model().initial_weights();
  if (uri.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> path = training::LocalPath(uri);
  if (!path.ok()) return path.status();
  for (const std::string& place : submit.weights_at) {
    if (absl::Status status = CheckLinkedWeights(submit, place); !status.ok()) return status;
  }
  const JobRecord* const job = FindJob(JobWhoseFolderHolds(*path));
  if (job == nullptr) {
    if (submit.caller.any_job || !options_.is_data || options_.is_data(*path)) {
      return absl::OkStatus();
    }
    return absl::PermissionDeniedError(
        absl::StrCat("model.initial_weights: ", uri,
                     ": lies under no --data-root, and in the folder of no job that the "
                     "coordinator knows; an admin may begin from it"));
  }
  if (absl::Status status = CheckOwner(*job, submit.caller); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("model.initial_weights: ", status.message()));
  }
  const std::string folder = training::CheckpointFolderIn(*path);
  if (folder.empty()) return absl::OkStatus();
  const std::string id = folder.substr(folder.rfind('/') + 1);
  if (job->FindManifest(id) != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("model.initial_weights: ", NoCheckpoint(*job, id).message()));
}

}  // namespace capstan::coordinator::core
