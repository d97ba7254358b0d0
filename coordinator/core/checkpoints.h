// The committed checkpoints of a job: which there are, which are kept, which a person has deleted.
#ifndef CAPSTAN_COORDINATOR_CORE_CHECKPOINTS_H_
#define CAPSTAN_COORDINATOR_CORE_CHECKPOINTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "capstan/job/v1/job_service.pb.h"

namespace capstan::coordinator::core {

// A committed manifest.
struct SavedManifest {
  job::v1::SavedCheckpoint saved;
  std::vector<int64_t> orders;  // ids of the changes that its snapshot has applied
  bool refused = false;         // a shard found it damaged
};

// Not thread-safe. An id is `<lineage>-<step>`.
class Checkpoints {
 public:
  // In the order of their commits. Pointers are valid until the next change.
  const std::vector<SavedManifest>& all() const { return all_; }
  bool empty() const { return all_.empty(); }
  // The newest that nobody has refused, or null: a new lineage begins from it.
  const SavedManifest* Last() const;
  const SavedManifest* Find(const std::string& id) const;  // null: there is none
  // Of the newest; empty: there is none.
  const std::string& uri() const { return uri_; }

  void Add(SavedManifest manifest);
  // A shard found it damaged: no lineage begins from it, and it is not the best one.
  void Refuse(const std::string& id);
  // The damage may have been repaired.
  void ForgiveRefusals();

  // Marks the `best` ones by `metric` (of a step; higher is better), and forgets all except the newest
  // `latest`, the best, and those for which `needed` is true. Refused ones are forgotten, too.
  void Prune(size_t latest, size_t best,
             const std::function<std::optional<double>(int64_t step)>& metric,
             const std::function<bool(const std::string& id)>& needed);

  // Its folder is still to be removed. `id` is one of all().
  void Delete(const std::string& id);
  // Ids that were deleted and whose folders may still be there.
  const std::set<std::string>& deleted() const { return deleted_; }
  // False: it was not among deleted().
  bool NoteRemoved(const std::string& id) { return deleted_.erase(id) > 0; }

  void Load(std::vector<SavedManifest> all, std::string uri, std::set<std::string> deleted);

 private:
  std::vector<SavedManifest> all_;
  std::string uri_;
  std::set<std::string> deleted_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_CHECKPOINTS_H_
