#include "coordinator/core/written_versions.h"

#include <algorithm>

namespace capstan::coordinator::core {

const node::v1::WrittenFiles* WrittenVersions::Of(int32_t shard, int64_t step) const {
  const auto at = versions_.find(step);
  if (at == versions_.end()) return nullptr;
  const auto its = at->second.files.find(shard);
  return its == at->second.files.end() ? nullptr : &its->second;
}

namespace {

bool TakeOf(int32_t member, const node::v1::WrittenFiles& reported, const std::string& error,
            std::map<int32_t, node::v1::WrittenFiles>& files,
            std::map<int32_t, std::string>& errors) {
  if (!error.empty()) return errors.emplace(member, error).second;
  if (reported.files_size() == 0) return false;
  errors.erase(member);
  return files.emplace(member, reported).second;
}

}  // namespace

bool WrittenVersions::Take(int32_t shard, const node::v1::WrittenFiles& files,
                           const std::string& error) {
  WrittenVersion& version = versions_[files.step()];
  return TakeOf(shard, files, error, version.files, version.errors);
}

bool WrittenVersions::TakeResiduals(int32_t task, const node::v1::WrittenFiles& files,
                                    const std::string& error) {
  WrittenVersion& version = versions_[files.step()];
  return TakeOf(task, files, error, version.residuals, version.residual_errors);
}

void WrittenVersions::Settle(int64_t step) {
  settled_step_ = std::max(settled_step_, step);
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
