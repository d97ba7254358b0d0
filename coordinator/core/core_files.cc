// Which member may write and read files of a job over gRPC. If the folder is shared, no member asks.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "training/chunks/shard_memory.h"
#include "training/spec/validate.h"

namespace capstan::coordinator::core {
namespace {

constexpr int64_t kFileBaseBytes = int64_t{1} << 20;
constexpr int64_t kFileBytesPerTensor = 1024;  // of a header of ours: below 300

// No file of a checkpoint is larger: all weights, the largest state of an optimizer, a header; or the
// residuals of all lanes.
int64_t MaxFileBytes(const job::v1::ResolvedSpec& spec) {
  const int64_t tensors = 2 * int64_t{spec.chunk_count()} + spec.parameters_size();
  const auto flat_bytes = static_cast<int64_t>(sizeof(float)) * spec.flat_floats();
  const int64_t chunks =
      kFileBytesPerTensor * tensors + (1 + training::kMaxStateFloatsPerWeight) * flat_bytes;
  const int64_t residuals = training::spec::KeepsResiduals(spec.spec())
                                ? int64_t{spec.lanes()} * (kFileBytesPerTensor + flat_bytes)
                                : 0;
  return kFileBaseBytes + std::max(chunks, residuals);
}

template <typename Member>
const Member* FindHolder(const std::vector<Member>& members, const FileHolder& holder) {
  const auto found = std::find_if(members.begin(), members.end(), [&](const Member& member) {
    return member.index == holder.index && member.incarnation == holder.incarnation;
  });
  return found == members.end() ? nullptr : &*found;
}

}  // namespace

absl::StatusOr<FileGrant> CoordinatorCore::GrantFiles(absl::string_view job_id,
                                                      const FileHolder& holder) const {
  const Job* const job = ctx_.jobs().Find(job_id);
  if (job == nullptr || !job->resolved().has_value()) {
    return absl::NotFoundError(absl::StrCat("no files of a job ", job_id));
  }
  const Shard* const shard = holder.shard ? FindHolder(job->shards(), holder) : nullptr;
  const Task* const task = holder.shard ? nullptr : FindHolder(job->tasks(), holder);
  const bool local = job->view().shards().empty();
  FileGrant grant;
  grant.storage_path = job->resolved()->storage_path();
  grant.lineage = job->view().lineage();
  grant.settled_step = job->written().settled_step();
  grant.total_steps = job->resolved()->total_steps();
  grant.max_file_bytes = MaxFileBytes(*job->resolved());
  grant.initial_weights = job->resolved()->spec().model().initial_weights();
  const bool leads = holder.index == 0 && (holder.shard || local);
  grant.may_log = leads && (shard != nullptr || task != nullptr);
  if (job->ended() && grant.may_log) return grant;
  const bool lives = (shard != nullptr && !shard->lost && !shard->gone) ||
                     (task != nullptr && !task->lost && !task->gone);
  if (!lives || !job->in_history() || job->resting()) {
    return absl::UnauthenticatedError(absl::StrCat("job ", job_id, ": ",
                                                   holder.shard ? "shard " : "task ", holder.index,
                                                   " of this process is not of its view"));
  }
  if (shard != nullptr) {
    grant.may_write.push_back(absl::StrCat("shard-", shard->index, ".safetensors"));
  } else {
    if (local) grant.may_write.push_back("shard-0.safetensors");
    if (job->view().lane_owners_size() > 0 && job->view().lane_owners(0) == task->index) {
      grant.may_write.push_back("weights.safetensors");
    }
    if (job->KeepsResiduals() && job->lineages().Owns(task->index)) {
      grant.may_write.push_back(absl::StrCat("residuals-", task->index, ".safetensors"));
    }
  }
  return grant;
}

}  // namespace capstan::coordinator::core
