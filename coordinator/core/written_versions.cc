#include "coordinator/core/written_versions.h"

#include <algorithm>

namespace capstan::coordinator::core {

const node::v1::WrittenFiles* WrittenVersions::Of(int32_t shard, int64_t step) const {
  const auto at = versions_.find(step);
  if (at == versions_.end()) return nullptr;
  const auto its = at->second.files.find(shard);
  return its == at->second.files.end() ? nullptr : &its->second;
}

bool WrittenVersions::Take(int32_t shard, const node::v1::WrittenFiles& files,
                           const std::string& error) {
  WrittenVersion& version = versions_[files.step()];
  if (!error.empty()) return version.errors.emplace(shard, error).second;
  if (files.files_size() == 0) return false;
  version.errors.erase(shard);
  return version.files.emplace(shard, files).second;
}

void WrittenVersions::Settle(int64_t step) {
  settled_step_ = step;
  versions_.erase(versions_.begin(), versions_.upper_bound(step));
}

void WrittenVersions::TakeWeights(const node::v1::WrittenFiles& files, std::string sha256) {
  weights_ = files;
  weights_sha256_ = std::move(sha256);
}

void WrittenVersions::BeginLineage(int64_t base_step) {
  settled_step_ = base_step;
  versions_.clear();
  weights_.Clear();
  weights_sha256_.clear();
}

}  // namespace capstan::coordinator::core
