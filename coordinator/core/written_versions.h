// What the members of a job have reported of the files of its versions, until these are committed.
#ifndef CAPSTAN_COORDINATOR_CORE_WRITTEN_VERSIONS_H_
#define CAPSTAN_COORDINATOR_CORE_WRITTEN_VERSIONS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "capstan/node/v1/node.pb.h"

namespace capstan::coordinator::core {

// What was reported of one version of the lineage.
struct WrittenVersion {
  std::map<int32_t, node::v1::WrittenFiles> files;  // by shard; 0: the task that is its own shard
  std::map<int32_t, std::string> errors;            // by shard, the newest
  // Likewise of residuals, by task.
  std::map<int32_t, node::v1::WrittenFiles> residuals;
  std::map<int32_t, std::string> residual_errors;
};

// Of one lineage. Not thread-safe.
class WrittenVersions {
 public:
  // By step, above settled_step().
  const std::map<int64_t, WrittenVersion>& versions() const { return versions_; }
  // Checkpoints of the lineage up to this step are committed or given up.
  int64_t settled_step() const { return settled_step_; }
  // What a shard reported of a version, or null.
  const node::v1::WrittenFiles* Of(int32_t shard, int64_t step) const;

  // A shard reports files or `error`, a sentence. True: that is news.
  bool Take(int32_t shard, const node::v1::WrittenFiles& files, const std::string& error);
  // Likewise a task, of the residuals of its lanes.
  bool TakeResiduals(int32_t task, const node::v1::WrittenFiles& files, const std::string& error);
  // The checkpoint of `step` is committed: nothing up to it is waited for any more.
  void Settle(int64_t step);

  // Of the task that owned lane 0, of the last version; without files: not reported.
  const node::v1::WrittenFiles& weights() const { return weights_; }
  bool has_weights() const { return weights_.files_size() > 0; }
  const std::string& weights_sha256() const { return weights_sha256_; }
  void TakeWeights(const node::v1::WrittenFiles& files, std::string sha256);
  // Of a manifest that was found on disk, or of the journal.
  void SetWeightsSha256(std::string sha256) { weights_sha256_ = std::move(sha256); }

  void BeginLineage(int64_t base_step);
  void Load(int64_t settled_step) { settled_step_ = settled_step; }

 private:
  std::map<int64_t, WrittenVersion> versions_;
  int64_t settled_step_ = -1;
  node::v1::WrittenFiles weights_;
  std::string weights_sha256_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_WRITTEN_VERSIONS_H_
